"""The energy of every source at once, and its gradient in closed form.

One source's energy is an MLP on a feature x and, optionally, a latent z::

    a0 = Wx x + (Wz z + b0)         (hidden)
    a1 = W1 swish(a0) + b1          (narrow)
    E  = sigmoid(w2 . swish(a1) + b2)   in (0, 1)

    dE/dx = E (1 - E) * Wx^T( swish'(a0) * W1^T( swish'(a1) * w2 ) )

All sources are stacked in one leading axis, so a step for every source is a handful of batched matrix
products. `Wz z + b0` does not change along a chain: `latent_bias` computes it once.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sourceward.functional.rows import elementwise


class EnergyWeights(NamedTuple):
    """Weights of the stacked energy, with spectral normalisation already applied."""

    feature: Tensor
    """Wx: (sources, hidden, dim)."""
    latent: Tensor | None
    """Wz: (sources, hidden, dim), or None for an energy of the feature alone."""
    hidden_bias: Tensor
    """b0: (sources, hidden)."""
    narrow: Tensor
    """W1: (sources, narrow, hidden)."""
    narrow_bias: Tensor
    """b1: (sources, narrow)."""
    out: Tensor
    """w2: (sources, narrow)."""
    out_bias: Tensor
    """b2: (sources,)."""

    def detach(self) -> "EnergyWeights":
        """The same values as constants: the stop-gradient sg(theta) of eq. 7 and eq. 10."""
        return EnergyWeights(*(w if w is None else w.detach() for w in self))  # type: ignore[arg-type]


class Masks(NamedTuple):
    """Dropout masks of the two hidden layers, already divided by the keep probability."""

    hidden: Tensor
    """(sources, batch, hidden)."""
    narrow: Tensor
    """(sources, batch, narrow)."""


def swish(a: Tensor) -> Tensor:
    """a * sigmoid(a)."""
    return elementwise(torch.nn.functional.silu, a)


def swish_grad(a: Tensor) -> Tensor:
    """d swish / da = s + a s (1 - s), with s = sigmoid(a)."""
    s = torch.sigmoid(a)
    return s * (1 + a * (1 - s))


def latent_bias(weights: EnergyWeights, latent: Tensor | None) -> Tensor:
    """The part of the first layer that stays constant along a chain: Wz z + b0.

    Args:
        weights: of all sources.
        latent: (sources, batch, dim), ignored by an energy without latent.

    Returns:
        (sources, batch, hidden), or (sources, 1, hidden) without latent.
    """
    if weights.latent is None:
        return weights.hidden_bias.unsqueeze(1)
    if latent is None:
        raise ValueError("Expected `latent` for an energy E(x|z), but got None.")
    return torch.baddbmm(weights.hidden_bias.unsqueeze(1), latent, weights.latent.mT)


def energy(weights: EnergyWeights, feature: Tensor, bias: Tensor, masks: Masks | None = None) -> Tensor:
    """E(x|z) of each source: (sources, batch).

    Args:
        weights: of all sources.
        feature: (sources, batch, dim).
        bias: from `latent_bias`.
        masks: dropout, in training only.

    Example:
        >>> w = EnergyWeights(torch.ones(1, 1, 1), None, torch.zeros(1, 1), torch.ones(1, 1, 1),
        ...                   torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1))
        >>> energy(w, torch.zeros(1, 1, 1), latent_bias(w, None))
        tensor([[0.5000]])
    """
    return torch.sigmoid(_layers(weights, feature, bias, masks)[2])


def energy_and_grad(weights: EnergyWeights, feature: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """E(x|z) and dE/dx of each source, in closed form: (sources, batch) and (sources, batch, dim).

    Differentiable in the weights like any other expression, so the last line of eq. 10 needs no double
    backward.
    """
    a0, a1, score = _layers(weights, feature, bias, None)
    value = torch.sigmoid(score)
    back = (swish_grad(a1) * weights.out.unsqueeze(1)) @ weights.narrow
    back = swish_grad(a0) * back * (value * (1 - value)).unsqueeze(-1)
    return value, back @ weights.feature


def _layers(
    weights: EnergyWeights, feature: Tensor, bias: Tensor, masks: Masks | None
) -> tuple[Tensor, Tensor, Tensor]:
    a0 = feature @ weights.feature.mT + bias
    h0 = swish(a0) if masks is None else swish(a0) * masks.hidden
    a1 = torch.baddbmm(weights.narrow_bias.unsqueeze(1), h0, weights.narrow.mT)
    h1 = swish(a1) if masks is None else swish(a1) * masks.narrow
    # A row-wise sum, not a matrix-vector product: BLAS picks that kernel by batch size.
    score = (h1 * weights.out.unsqueeze(1)).sum(-1) + weights.out_bias.unsqueeze(1)
    return a0, a1, score
