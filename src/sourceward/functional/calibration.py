"""Calibration: energies as z-scores of each source's held-out samples, so that sources can be compared; and
trust, the estimated probability that a predicted label is right, with what abstention by it gains.
"""

from collections.abc import Sequence

import numpy as np
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


RANGE = (0.25, 4.0)
"""Temperatures that are tried."""


def agreement(per_source: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Share of the sources whose own prediction is the label: (n, sources, classes), (n,) -> (n,).

    >>> agreement(np.array([[[0.9, 0.1], [0.2, 0.8]]]), np.array([0]))
    array([0.5])
    """
    return (per_source.argmax(2) == label[:, None]).mean(1)


def tempered(probability: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities at a temperature, (n, classes): above 1 they are less extreme.

    >>> tempered(np.array([[0.8, 0.2]]), 2.0).round(2)
    array([[0.67, 0.33]])
    """
    log = np.log(np.maximum(probability, np.finfo(np.float32).tiny)) / temperature
    power = np.exp(log - log.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


def trust(probability: np.ndarray, temperature: float) -> np.ndarray:
    """Probability of the predicted class at a temperature, (n,)."""
    if temperature == 1:
        return probability.max(1)
    return tempered(probability, temperature).max(1).astype(probability.dtype)


def fit_temperature(probability: np.ndarray, label: np.ndarray) -> float:
    """The temperature at which the labels are most likely."""
    from scipy.optimize import minimize_scalar

    finite = np.isfinite(probability).all(1)
    probability, label = probability[finite], label[finite]
    if not len(label):
        return 1.0
    rows = np.arange(len(label))

    def loss(log_temperature: float) -> float:
        own = tempered(probability, np.exp(log_temperature))[rows, label]
        return float(-np.log(np.maximum(own, np.finfo(np.float32).tiny)).mean())

    low, high = np.log(RANGE)
    return float(np.exp(minimize_scalar(loss, bounds=(low, high), method="bounded").x))


def risk_coverage(trust: np.ndarray, right: np.ndarray, coverages: Sequence[float]) -> dict[float, float]:
    """Error among the most trusted share of the samples, for each coverage.

    >>> risk_coverage(np.array([0.9, 0.8, 0.3]), np.array([1, 1, 0]), [1.0, 0.67])
    {1.0: 0.3333333333333333, 0.67: 0.0}
    """
    order = np.argsort(-trust, kind="stable")
    wrong = 1 - np.asarray(right, dtype=float)[order]
    return {share: float(wrong[: max(1, round(share * len(wrong)))].mean()) for share in coverages}


def calibration_gap(stated: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Mean gap between stated and actual shares of right labels over equal bins, weighted by their size."""
    index = np.clip(np.ceil(np.asarray(stated) * bins).astype(int), 1, bins) - 1
    gaps = np.bincount(index, np.asarray(right, dtype=float) - stated, bins)
    return float(np.abs(gaps).sum() / len(right))
