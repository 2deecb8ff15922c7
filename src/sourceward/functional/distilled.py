"""The distilled: one map from a sample to about where its chain would end.

A chain on a source's energy bends little, so the map is the first gradient at a length of the sample's own,
plus what a small network makes of the energy's hidden layer::

    m = swish(V swish(a0) + c)
    x' = x - exp(s + w . m) dE/dx + U m

All of it is closed form: one evaluation of the energy's gradient and two small products.
"""

from typing import NamedTuple

from torch import Tensor

from sourceward.functional.chain import ChainWeights
from sourceward.functional.energy import swish
from sourceward.functional.rows import matmul


class DistilledWeights(NamedTuple):
    """Weights of the distilled steps of all sources."""

    inner: Tensor
    """V^T: (sources, hidden, width)."""
    bias: Tensor
    """c: (sources, 1, width)."""
    outer: Tensor
    """U^T: (sources, width, dim)."""
    scale: Tensor
    """w: (sources, 1, width)."""
    length: Tensor
    """s: (sources, 1, 1)."""


class StartPoint(NamedTuple):
    """What the energy knows of a sample before it distilled steps."""

    feature: Tensor
    """(sources, batch, dim)."""
    hidden: Tensor
    """swish(a0): (sources, batch, hidden)."""
    grad: Tensor
    """dE/dx: (sources, batch, dim)."""

    @classmethod
    def of(cls, weights: ChainWeights, feature: Tensor, bias: Tensor) -> "StartPoint":
        """At `feature`, (sources, batch, dim), with `bias` from `ChainWeights.bias`."""
        a0 = weights.first(feature, bias)
        return cls(feature, swish(a0), weights.energy_and_grad(a0)[1])


def distilled_step(weights: DistilledWeights, at: StartPoint) -> Tensor:
    """Where the distilled ends: (sources, batch, dim). Differentiable in the distilled's weights."""
    inside = swish(matmul(at.hidden, weights.inner, weights.bias))
    length = (weights.length + (inside * weights.scale).sum(-1, keepdim=True)).exp()
    return matmul(inside, weights.outer, at.feature - length * at.grad)
