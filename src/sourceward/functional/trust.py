"""Trust: the estimated probability that a predicted label is right; and what abstention by it buys."""

from collections.abc import Sequence

import numpy as np

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
