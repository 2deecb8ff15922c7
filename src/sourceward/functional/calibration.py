"""Energies that can be compared between sources: each on the scale of its source's own held-out samples."""

import torch
from torch import Tensor

LEVELS = torch.linspace(0, 1, 21)
"""Levels of the quantiles that stand for the distribution of a source's own energies."""

MIDDLE, LOW, HIGH = 10, 3, 17
"""The median, and the levels nearest to one standard deviation of a normal on either side."""


def own_quantiles(energy: Tensor) -> Tensor:
    """Quantiles at `LEVELS` of one source's energies of its own samples: (rows,) -> (levels,)."""
    return torch.quantile(energy.float(), LEVELS.to(energy.device))


def energy_zscore(energy: Tensor, quantiles: Tensor) -> Tensor:
    """How unlike a source's own samples these are, in robust standard deviations above its median.

    Args:
        energy: (sources, batch).
        quantiles: (sources, levels), from `own_quantiles`.

    Example:
        >>> own = own_quantiles(torch.linspace(0, 1, 101)).unsqueeze(0)
        >>> energy_zscore(torch.tensor([[0.5, 0.85]]), own).round(decimals=3).tolist()
        [[0.0, 1.0]]
    """
    middle = quantiles[:, MIDDLE, None]
    spread = (quantiles[:, HIGH, None] - quantiles[:, LOW, None]) / 2
    return (energy - middle) / spread.clamp_min(1e-6)


def mixing_share(first: Tensor, second: Tensor, label: Tensor, rounds: int = 100) -> float:
    """The share of `second` in the mixture of two answers that makes the labels likeliest.

    Args:
        first, second: (batch, classes) probabilities.
        label: (batch,).
        rounds: of expectation maximisation.

    >>> a, b = torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([[0.2, 0.8], [0.2, 0.8]])
    >>> round(mixing_share(a, b, torch.tensor([1, 1])), 2), round(mixing_share(a, b, torch.tensor([0, 0])), 2)
    (1.0, 0.0)
    """
    rows = torch.arange(len(label), device=label.device)
    one, two = (p[rows, label].double().clamp_min(1e-12) for p in (first, second))
    share = torch.full_like(one[:1], 0.5)
    for _ in range(rounds):
        share = (share * two / (share * two + (1 - share) * one)).mean(0, keepdim=True)
    return share.item()
