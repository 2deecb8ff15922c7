"""Energies that can be compared between sources: standardised by those of each source's held-out samples."""

import torch
from torch import Tensor

LEVELS = torch.linspace(0, 1, 21)
"""Levels of the quantiles that describe the distribution of a source's energies."""

MEDIAN, LOW, HIGH = 10, 3, 17
"""The median, and the levels nearest to one standard deviation of a normal on either side."""


def energy_quantiles(energy: Tensor) -> Tensor:
    """Quantiles at `LEVELS` of a source's energies of its own samples: (rows,) -> (levels,)."""
    return torch.quantile(energy.float(), LEVELS.to(energy.device))


def energy_zscore(energy: Tensor, quantiles: Tensor) -> Tensor:
    """Energy above the median of the source's own samples, in robust standard deviations: (sources, batch).

    Args:
        energy: (sources, batch).
        quantiles: (sources, levels), from `energy_quantiles`.

    Example:
        >>> own = energy_quantiles(torch.linspace(0, 1, 101)).unsqueeze(0)
        >>> energy_zscore(torch.tensor([[0.5, 0.85]]), own).round(decimals=3).tolist()
        [[0.0, 1.0]]
    """
    median = quantiles[:, MEDIAN, None]
    deviation = (quantiles[:, HIGH, None] - quantiles[:, LOW, None]) / 2
    return (energy - median) / deviation.clamp_min(1e-6)


def mixture_weight(first: Tensor, second: Tensor, label: Tensor, rounds: int = 100) -> float:
    """The weight of `second` in the mixture of two predictions that maximises the likelihood of the labels.

    Args:
        first, second: (batch, classes) probabilities.
        label: (batch,).
        rounds: of expectation maximisation.

    >>> a, b = torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([[0.2, 0.8], [0.2, 0.8]])
    >>> [round(mixture_weight(a, b, torch.tensor([label, label])), 2) for label in (1, 0)]
    [1.0, 0.0]
    """
    rows = torch.arange(len(label), device=label.device)
    one, two = (p[rows, label].double().clamp_min(1e-12) for p in (first, second))
    weight = torch.full_like(one[:1], 0.5)
    for _ in range(rounds):
        weight = (weight * two / (weight * two + (1 - weight) * one)).mean(0, keepdim=True)
    return weight.item()
