"""`Folded`: a trained network laid out for prediction, with everything that is constant computed once."""

import copy
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sourceward.functional import ChainWeights, swish
from sourceward.functional.distilled import DistilledWeights
from sourceward.functional.rows import laid_out, matmul
from sourceward.functional.voting import vote
from sourceward.nn.heads import Head
from sourceward.nn.latent import LatentNet
from sourceward.nn.network import VOICES, Network


class RowLinear(nn.Module):
    """A trained `nn.Linear` that gives a row the same bits whatever its neighbours: see `functional.rows`."""

    weight: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", laid_out(linear.weight))
        self.register_buffer("bias", linear.bias.detach().clone())

    def forward(self, rows: Tensor) -> Tensor:
        if rows.is_cuda and rows.dim() == 2:
            return torch.addmm(self.bias, rows, self.weight)  # one kernel
        return matmul(rows, self.weight).add_(self.bias)


@dataclass(frozen=True)
class Folded:
    """What prediction needs of a network, without its backbone.

    Args:
        energy: spectral norm folded in, both directions contiguous.
        latent: p(z|x).
        head: the classifier.
        class_latent: mean of q(z|d) of each source's class centres, (sources, classes, dim).
        pooled_latent: the same of the centres of all sources together, for a head that uses it.
        voters: the two of them side by side, and the lda where it votes, (sources, voters x classes,
            dim): one product serves all.
        voter_bias: (voters x classes,).
        voter_share: (voters, 1), how much each counts.
        source_center: mean class centre of each source, (sources, dim).
        own_energy: quantiles of each source's energy of its own samples, (sources, levels).
        distilled: one map per source to where its chain would end, where there is one.
        graphs: CUDA graphs that read these tensors: see `graphs.replay`.
    """

    energy: ChainWeights
    latent: LatentNet | None
    head: Head
    class_latent: Tensor | None
    pooled_latent: Tensor | None
    voters: Tensor | None
    voter_bias: Tensor | None
    voter_share: Tensor | None
    source_center: Tensor
    own_energy: Tensor
    distilled: DistilledWeights | None = None
    graphs: dict[Hashable, Any] = field(default_factory=dict, compare=False)

    def classify(self, feature: Tensor, latent: Tensor | None) -> Tensor:
        """Each source's answer, (sources, rows, classes); a pooled head asks all of its classifiers."""
        if self.voter_share is None or self.voter_bias is None:
            return self.head(feature, latent, self.class_latent).softmax(-1)
        logits = self.head(feature, latent, self.voters) + self.voter_bias
        return vote(logits.unflatten(-1, (len(self.voter_share), -1)), self.voter_share)

    def prior_mean(self, feature: Tensor) -> Tensor:
        """The mean of p(z|x), without its std: (batch, dim)."""
        assert self.latent is not None
        return self.latent.mean(swish(self.latent.hidden(feature)))


def folded(network: Network) -> Folded:
    """Fold a network, or return what was folded before if nothing has changed since."""
    known = network.__dict__.get("_folded")
    if known is None or known.state != known.read(network):
        with torch.no_grad():
            known = _Kept(network, _fold(network))
        network.__dict__["_folded"] = known
    return known.folded


def folded_before(network: Network) -> Folded | None:
    """What `folded` returned last, whatever has changed since."""
    known = network.__dict__.get("_folded")
    return None if known is None else known.folded


def forget(network: Network) -> None:
    """Let go of what was folded, and of the memory of its graphs."""
    network.__dict__.pop("_folded", None)


class _Kept:
    """What was folded, and of what. Belongs to one network: a copy of the network starts without it."""

    def __init__(self, network: Network, folded: Folded) -> None:
        parts = [part for part in _parts(network) if part is not None]
        modules = [module for part in parts for module in part.modules()]  # found once: it takes a while
        owners = [tensors for module in modules for tensors in (module._parameters, module._buffers)]
        self.owners = [tensors for tensors in owners if tensors]
        self.folded, self.state = folded, self.read(network)
        tensors = [tensor for owned in (*self.owners, network._buffers) for tensor in owned.values()]
        self.alive = [tensor.detach() for tensor in tensors if tensor is not None]  # graphs read them

    def read(self, network: Network) -> list[Any]:
        """Changes whenever a part or a tensor is replaced or written to. The backbone plays no part."""
        found: list[Any] = [id(part) for part in _parts(network)]
        for tensors in (*self.owners, network._buffers):
            for tensor in tensors.values():
                if tensor is not None:
                    found += (tensor.data_ptr(), tensor._version)
        return found

    def __deepcopy__(self, memo: object) -> None:
        return None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


def _parts(network: Network) -> tuple[nn.Module | None, ...]:
    return network.energy, network.latent, network.head, network.distilled


def _fold(network: Network) -> Folded:
    own, pooled = network.posterior(network.centers), None
    if network.head.pooled:
        pooled = network.posterior(network.centers.mean(0, keepdim=True).expand_as(network.centers))
    latents = [laid_out(gaussian.mean) for gaussian in (own, pooled) if gaussian is not None]
    voters, bias, share = _voters(network, latents) if len(latents) > 1 else (None, None, None)
    return Folded(
        ChainWeights.of(network.energy.weights()),
        None if network.latent is None else _row_wise(network.latent),
        _row_wise(network.head),
        latents[0].mT if latents else None,
        latents[1].mT if len(latents) > 1 else None,
        voters,
        bias,
        share,
        network.centers.mean(1),
        network.own_energy,
        None
        if network.distilled is None
        else DistilledWeights(*(w.detach() for w in network.distilled.weights())),
    )


def _voters(network: Network, latents: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, biases and shares of a pooled head's classifiers, the lda among them."""
    bias, voices = network.centers.new_zeros(2 * network.classes), [VOICES, VOICES]
    if count := int(network.lda_weight):
        weight, own = network.lda()
        weight = laid_out(weight * network.dim**0.5).expand_as(latents[0])  # the head divides by the root
        latents, bias, voices = [*latents, weight], torch.cat([bias, own]), [*voices, count]
    share = network.centers.new_tensor(voices).unsqueeze(-1) / sum(voices)
    return torch.cat(latents, -1).mT, bias, share


M = TypeVar("M", bound=nn.Module)


def _row_wise(module: M) -> M:
    """A copy whose linear layers are `RowLinear`."""
    module = copy.deepcopy(module).requires_grad_(False).eval()
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, RowLinear(child))
    return module
