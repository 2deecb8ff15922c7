"""`Folded`: a trained network prepared for prediction, with all constants computed once."""

import copy
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sourceward.functional import ChainWeights, swish
from sourceward.functional.aggregation import mix_classifiers
from sourceward.functional.distilled import DistilledWeights
from sourceward.functional.rows import matmul, transpose_contiguous
from sourceward.nn.heads import Head, LatentNet
from sourceward.nn.network import CLASSIFIER_WEIGHT, Network


class RowLinear(nn.Module):
    """A trained `nn.Linear` whose rows do not depend on the rest of the batch: see `functional.rows`."""

    weight: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", transpose_contiguous(linear.weight))
        self.register_buffer("bias", linear.bias.detach().clone())

    def forward(self, rows: Tensor) -> Tensor:
        if rows.is_cuda and rows.dim() == 2:
            return torch.addmm(self.bias, rows, self.weight)  # one kernel
        return matmul(rows, self.weight).add_(self.bias)


@dataclass(frozen=True)
class Folded:
    """What prediction needs of a network, without its backbone.

    Args:
        energy: weights of the energies, divided by their spectral norms.
        latent: p(z|x).
        head: the classifier.
        class_latent: mean of q(z|d) of each source's class centres, (sources, classes, dim).
        pooled_latent: the same of the centres pooled over all sources, for a pooled head.
        classifiers: weights of a pooled head's classifiers side by side (the source's own, the pooled one,
            and LDA if it has weight), (sources, classifiers x classes, dim): one product serves all.
        classifier_bias: (classifiers x classes,).
        classifier_weight: (classifiers, 1), weights in the mixture, summing to 1.
        source_center: mean class centre of each source, (sources, dim).
        energy_quantiles: quantiles of each source's energy of its own samples, (sources, levels).
        distilled: weights of the distilled sampler, if it was trained.
        graphs: CUDA graphs that read these tensors: see `_util.graphs.replay`.
    """

    energy: ChainWeights
    latent: LatentNet | None
    head: Head
    class_latent: Tensor | None
    pooled_latent: Tensor | None
    classifiers: Tensor | None
    classifier_bias: Tensor | None
    classifier_weight: Tensor | None
    source_center: Tensor
    energy_quantiles: Tensor
    distilled: DistilledWeights | None = None
    graphs: dict[Hashable, Any] = field(default_factory=dict, compare=False)

    def classify(self, feature: Tensor, latent: Tensor | None) -> Tensor:
        """Probabilities of each source, (sources, rows, classes); a pooled head mixes its classifiers."""
        if self.classifier_weight is None or self.classifier_bias is None:
            return self.head(feature, latent, self.class_latent).softmax(-1)
        logits = self.head(feature, latent, self.classifiers) + self.classifier_bias
        classifiers = logits.unflatten(-1, (len(self.classifier_weight), -1))
        return mix_classifiers(classifiers, self.classifier_weight)

    def prior_mean(self, feature: Tensor) -> Tensor:
        """The mean of p(z|x), without its std: (batch, dim)."""
        assert self.latent is not None
        return self.latent.mean(swish(self.latent.hidden(feature)))


def folded(network: Network) -> Folded:
    """Fold a network, or return the cached result if nothing has changed since."""
    known = network.__dict__.get("_folded")
    if known is None or known.state != known.read(network):
        with torch.no_grad():
            known = _Cached(network, _fold(network))
        network.__dict__["_folded"] = known
    return known.folded


def last_folded(network: Network) -> Folded | None:
    """The cached result of `folded`, even if the network has changed since; None if there is none."""
    known = network.__dict__.get("_folded")
    return None if known is None else known.folded


def clear_folded(network: Network) -> None:
    """Drop the cached result of `folded`, and with it the memory of its CUDA graphs."""
    network.__dict__.pop("_folded", None)


class _Cached:
    """A cached `Folded` and the state it was computed from. A copy of the network starts without it."""

    def __init__(self, network: Network, folded: Folded) -> None:
        parts = [part for part in _parts(network) if part is not None]
        modules = [module for part in parts for module in part.modules()]  # listed once because it is slow
        owners = [tensors for module in modules for tensors in (module._parameters, module._buffers)]
        self.owners = [tensors for tensors in owners if tensors]
        self.folded, self.state = folded, self.read(network)
        tensors = [tensor for owned in (*self.owners, network._buffers) for tensor in owned.values()]
        self.alive = [tensor.detach() for tensor in tensors if tensor is not None]  # CUDA graphs read them

    def read(self, network: Network) -> list[Any]:
        """A value that changes when a part or a tensor, except in the backbone, is replaced or written to."""
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
    latents = [transpose_contiguous(gaussian.mean) for gaussian in (own, pooled) if gaussian is not None]
    classifiers, bias, weight = _classifiers(network, latents) if len(latents) > 1 else (None, None, None)
    return Folded(
        ChainWeights.of(network.energy.weights()),
        None if network.latent is None else _row_wise(network.latent),
        _row_wise(network.head),
        latents[0].mT if latents else None,
        latents[1].mT if len(latents) > 1 else None,
        classifiers,
        bias,
        weight,
        network.centers.mean(1),
        network.energy_quantiles,
        None
        if network.distilled is None
        else DistilledWeights(*(w.detach() for w in network.distilled.weights())),
    )


def _classifiers(network: Network, latents: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, biases and mixture weights of a pooled head's classifiers, with LDA if it has weight."""
    bias, weights = network.centers.new_zeros(2 * network.classes), [CLASSIFIER_WEIGHT, CLASSIFIER_WEIGHT]
    if lda_weight := int(network.lda_weight):
        lda, own = network.lda()
        lda = transpose_contiguous(lda * network.dim**0.5).expand_as(latents[0])  # the head divides by it
        latents, bias, weights = [*latents, lda], torch.cat([bias, own]), [*weights, lda_weight]
    mixture = network.centers.new_tensor(weights).unsqueeze(-1) / sum(weights)
    return torch.cat(latents, -1).mT, bias, mixture


M = TypeVar("M", bound=nn.Module)


def _row_wise(module: M) -> M:
    """A copy whose linear layers are `RowLinear`."""
    module = copy.deepcopy(module).requires_grad_(False).eval()
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, RowLinear(child))
    return module
