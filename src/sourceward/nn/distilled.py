"""`DistilledStep`: the distilled sampler of every source, in one set of batched weights."""

import math

import torch
from torch import Tensor, nn

from sourceward.functional.distilled import DistilledWeights

WIDTH = 128
"""Width of the hidden layer: chains are nearly straight, so little is enough."""


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
