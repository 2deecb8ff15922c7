"""`StackedEnergy` and `DistilledStep`: the energy and the distilled sampler of every source, in one set of
batched weights each; `ReplayBuffer`: past chain ends by source and class, on the device they live on.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from sourceward.functional import EnergyWeights, Masks
from sourceward.functional.distilled import DistilledWeights

WIDTH = 128
"""Width of the hidden layer of a distilled step: chains are nearly straight, so little is enough."""


class StackedEnergy(nn.Module):
    """E^i(x|z) for every source i: [x, z] -> hidden -> narrow -> 1, swish, spectral norm on all weights.

    The module holds parameters; the maths is `functional.energy`, fed by `weights()`.

    Args:
        sources: number of sources.
        dim: width of feature and latent.
        hidden: width of the first layer; `dim` as in the paper when None.
        narrow: width of the second layer.
        latent: whether the energy is conditional, E(x|z), or E(x).
        dropout: after each of the two hidden layers, in training.
        spectral_norm: divide each weight by its largest singular value.

    Example:
        >>> StackedEnergy(sources=3, dim=8).weights().feature.shape
        torch.Size([3, 8, 8])
    """

    def __init__(
        self,
        sources: int,
        dim: int,
        hidden: int | None = None,
        narrow: int = 128,
        latent: bool = True,
        dropout: float = 0.2,
        spectral_norm: bool = True,
    ) -> None:
        super().__init__()
        hidden = hidden or dim
        self.dim, self.hidden = dim, hidden
        self.latent, self.dropout, self.spectral_norm = latent, dropout, spectral_norm
        widths = [(hidden, 2 * dim if latent else dim), (narrow, hidden), (1, narrow)]
        self.matrices = nn.ParameterList(torch.empty(sources, *shape) for shape in widths)
        self.biases = nn.ParameterList(torch.empty(sources, out) for out, _ in widths)
        for layer, (out, inner) in enumerate(widths):
            self.register_buffer(f"left{layer}", torch.empty(sources, out))
            self.register_buffer(f"right{layer}", torch.empty(sources, inner))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Uniform in +-1/sqrt(inputs), as `nn.Linear`; random singular vectors, refined by 15 iterations."""
        for layer, (matrix, bias) in enumerate(zip(self.matrices, self.biases)):
            bound = 1 / math.sqrt(matrix.shape[-1])
            for parameter in (matrix, bias):
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 2 * bound - bound)
            for side in ("left", "right"):
                vector = getattr(self, f"{side}{layer}")
                vector.copy_(nn.functional.normalize(torch.randn(vector.shape, generator=generator), dim=-1))
        for _ in range(15):
            self.power_iteration()

    @torch.no_grad()
    def power_iteration(self) -> None:
        """One refinement of the singular vectors; called once per training iteration."""
        for layer, matrix in enumerate(self.matrices):
            left, right = getattr(self, f"left{layer}"), getattr(self, f"right{layer}")
            right.copy_(nn.functional.normalize((matrix.mT @ left.unsqueeze(-1)).squeeze(-1), dim=-1))
            left.copy_(nn.functional.normalize((matrix @ right.unsqueeze(-1)).squeeze(-1), dim=-1))

    def weights(self) -> EnergyWeights:
        """The weights that `functional.energy` takes, divided by their spectral norms; differentiable."""
        first, narrow, out = (self._normalised(layer) for layer in range(3))
        return EnergyWeights(
            first[..., : self.dim],
            first[..., self.dim :] if self.latent else None,
            self.biases[0],
            narrow,
            self.biases[1],
            out.squeeze(1),
            self.biases[2].squeeze(-1),
        )

    def masks(self, batch: int, generator: torch.Generator | None) -> Masks | None:
        """Dropout masks for a batch, or None when there is no dropout."""
        if not self.dropout:
            return None
        keep = 1 - self.dropout

        def mask(matrix: Tensor) -> Tensor:
            shape = (matrix.shape[0], batch, matrix.shape[1])
            return matrix.new_empty(shape).bernoulli_(keep, generator=generator).div_(keep)

        return Masks(mask(self.matrices[0]), mask(self.matrices[1]))

    def _normalised(self, layer: int) -> Tensor:
        matrix = self.matrices[layer]
        if not self.spectral_norm:
            return matrix
        left, right = getattr(self, f"left{layer}"), getattr(self, f"right{layer}")
        sigma = torch.einsum("so,soi,si->s", left, matrix, right)
        return matrix / sigma.reshape(-1, 1, 1)


class DistilledStep(nn.Module):
    """The map of `functional.distilled` for every source; initially a plain gradient step.

    Args:
        sources, hidden, dim: sizes of the energy.
        reach: step size of that gradient step, e.g. the sum of a chain's step sizes.
        width: of the hidden layer.
    """

    def __init__(self, sources: int, hidden: int, dim: int, reach: float = 1.0, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.zeros(sources, hidden, width))
        self.bias = nn.Parameter(torch.zeros(sources, 1, width))
        self.outer = nn.Parameter(torch.zeros(sources, width, dim))
        self.scale = nn.Parameter(torch.zeros(sources, 1, width))
        self.length = nn.Parameter(torch.full((sources, 1, 1), math.log(reach)))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the inner layer at random; the outer layer stays zero, so the map is still a gradient step."""
        normal = torch.randn(self.inner.shape, generator=generator)
        self.inner.copy_(normal / math.sqrt(self.inner.shape[1]))

    @classmethod
    def like(cls, state: dict[str, Tensor], prefix: str) -> "DistilledStep":
        """A module of the sizes found in a state dict."""
        sources, hidden, width = state[f"{prefix}inner"].shape
        return cls(sources, hidden, state[f"{prefix}outer"].shape[-1], width=width)

    def weights(self) -> DistilledWeights:
        """The weights that `functional.distilled` takes."""
        return DistilledWeights(self.inner, self.bias, self.outer, self.scale, self.length)


class ReplayBuffer(nn.Module):
    """A ring of adapted features for each source and class.

    A module without parameters, so that its content is saved and resumed with everything else.

    Args:
        sources, classes, dim: sizes.
        per_class: rows kept for each source and class (the released code keeps 500).
    """

    rows: Tensor
    pushed: Tensor

    def __init__(self, sources: int, classes: int, dim: int, per_class: int = 500) -> None:
        super().__init__()
        self.per_class = per_class
        self.register_buffer("rows", torch.zeros(sources, classes, per_class + 1, dim))
        self.register_buffer("pushed", torch.zeros(sources, classes, dtype=torch.int64))

    @torch.no_grad()
    def push(self, feature: Tensor, label: Tensor) -> None:
        """Add rows, oldest out first: feature (sources, batch, dim), label (sources, batch)."""
        member = torch.nn.functional.one_hot(label, self.pushed.shape[1])
        rank = (member.cumsum(1) * member).sum(-1) - 1  # how many of this class came before in the batch
        count = member.sum(1)
        slot = (self.pushed.gather(1, label) + rank) % self.per_class
        source = torch.arange(len(label), device=label.device).unsqueeze(1).expand_as(label)
        # If more rows come than a ring holds, only the newest count; the rest go to a spare slot that is
        # never read, because the order of two writes to one address is not defined.
        newest = rank >= count.gather(1, label) - self.per_class
        slot = torch.where(newest, slot, self.per_class)
        self.rows[source, label, slot] = feature.to(self.rows.dtype)
        self.pushed += count

    @torch.no_grad()
    def replace(
        self, feature: Tensor, label: Tensor, share: float, generator: torch.Generator | None
    ) -> Tensor:
        """Replace about a `share` of the rows by stored ones of the same source and class, if any."""
        options: dict[str, Any] = {"generator": generator, "device": label.device}
        stored = self.pushed.gather(1, label).clamp_max(self.per_class)
        slot = (torch.rand(label.shape, **options) * stored).long()
        swap = (torch.rand(label.shape, **options) < share) & (stored > 0)
        source = torch.arange(len(label), device=label.device).unsqueeze(1).expand_as(label)
        old = self.rows[source, label, slot].to(feature.dtype)
        return torch.where(swap.unsqueeze(-1), old, feature)
