"""The latent network p(z|x), q(z|d), and classifier heads p(y|z,x): how a feature and the latents meet.

Every head maps (feature, latent, class_latent) to logits (sources, batch, classes). `latent` is the
sample's z, (sources, batch, dim); `class_latent` is a draw of q(z|d_c) for each class centre of each
source, (sources, classes, dim). A head ignores what it does not use.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus

from sourceward._util.registry import Registry
from sourceward.functional import Gaussian, swish
from sourceward.functional.rows import elementwise, matmul


class LatentNet(nn.Module):
    """A Gaussian over z from a feature. Fed x it is the prior, fed a class centre the posterior.

    x -> mean and std of z in R^dim, one hidden layer and two output layers, shared by all sources.

    std = 0.1 + 0.9 softplus(.), so it is at least 0.1. The size matches the parameter counts the
    paper reports.

    Args:
        dim: width of feature and latent.
        hidden: width of the hidden layer; `dim` when None.
    """

    def __init__(self, dim: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or dim
        self.hidden = nn.Linear(dim, hidden)
        self.mean = nn.Linear(hidden, dim)
        self.std = nn.Linear(hidden, dim)

    def forward(self, feature: Tensor) -> Gaussian:
        hidden = swish(self.hidden(feature))
        return Gaussian(self.mean(hidden), 0.1 + 0.9 * elementwise(softplus, self.std(hidden)))


class Head(nn.Module):
    """The contract of a head."""

    uses_latent: bool = True
    """Whether it needs a latent network; without one the energy is E(x) and the loss is eq. 7."""

    reads_latent: bool = False
    """Whether it uses the sample's own z, and not only those of the classes."""

    pooled: bool = False
    """Whether the class centres pooled over all sources give a second classifier beside the source's own."""

    def __init__(self, dim: int, classes: int, sources: int = 1) -> None:
        super().__init__()
        self.dim, self.classes, self.sources = dim, classes, sources

    def forward(self, feature: Tensor, latent: Tensor | None, class_latent: Tensor | None) -> Tensor:
        raise NotImplementedError


HEADS: Registry[type[Head]] = Registry("head")


@HEADS.register("prototype")
class PrototypeHead(Head):
    """The posteriors of the class centres are the weights: logits = x . z_c / sqrt(dim).

    The division is what makes it train: without it a draw's noise moves a logit by several units and the
    cheapest way to lower the loss is x -> 0.
    """

    def forward(self, feature: Tensor, latent: Tensor | None, class_latent: Tensor | None) -> Tensor:
        if class_latent is None:
            raise ValueError("Expected `class_latent` for the prototype head, but got None.")
        return matmul(feature, class_latent.mT) / math.sqrt(self.dim)


@HEADS.register("pooled")
class PooledPrototypeHead(PrototypeHead):
    """Two sets of prototypes: from the source's own class centres, and from those pooled over all sources.

    A source's own classifier never saw the other sources, so their samples are a real shift to train its
    energy on, but it is a weak classifier of a new domain. The pooled one makes up for that. Both are trained
    and averaged; the energies are guided by the source's own. With whitened features an LDA classifier joins
    the average: see `Network.lda`.
    """

    pooled = True


@HEADS.register("concat")
class ConcatHead(Head):
    """[x, z] through one hidden layer."""

    reads_latent = True

    def __init__(self, dim: int, classes: int, sources: int = 1) -> None:
        super().__init__(dim, classes, sources)
        self.hidden = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, classes)

    def forward(self, feature: Tensor, latent: Tensor | None, class_latent: Tensor | None) -> Tensor:
        if latent is None:
            raise ValueError("Expected `latent` for the concat head, but got None.")
        return self.out(swish(self.hidden(torch.cat([feature, latent], dim=-1))))


@HEADS.register("linear")
class LinearHead(Head):
    """A linear classifier of the feature for each source: the paper's ablation without latent (eq. 7)."""

    uses_latent = False

    def __init__(self, dim: int, classes: int, sources: int = 1) -> None:
        super().__init__(dim, classes, sources)
        self.weight = nn.Parameter(torch.zeros(sources, dim, classes))
        self.bias = nn.Parameter(torch.zeros(sources, 1, classes))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.dim**-0.5
        for parameter in (self.weight, self.bias):
            value = torch.rand(parameter.shape, generator=generator) * 2 * bound - bound
            parameter.data.copy_(value)

    def forward(self, feature: Tensor, latent: Tensor | None, class_latent: Tensor | None) -> Tensor:
        return matmul(feature, self.weight) + self.bias


def frozen_call(module: nn.Module, *inputs: Tensor | None) -> Any:
    """The module's output, differentiable in the inputs alone: the stop-gradient sg(phi) of eq. 7 and 10."""
    constants = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return functional_call(module, constants, inputs)
