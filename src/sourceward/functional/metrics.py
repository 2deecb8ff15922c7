"""Metrics of predicted probabilities; the paired bootstrap over samples and seeds for their differences."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

RESAMPLES = 2000
MANY_CLASSES = 100
"""Above this number of classes no confusion matrix is stored."""


def accuracy(probability: Tensor, label: Tensor) -> Tensor:
    """Share of rows whose most probable class is the label."""
    return (probability.argmax(-1) == label).to(probability.dtype).mean()


def negative_log_likelihood(probability: Tensor, label: Tensor) -> Tensor:
    """Mean of -log p(label)."""
    picked = probability.gather(-1, label.unsqueeze(-1)).squeeze(-1)
    return -picked.clamp_min(torch.finfo(probability.dtype).tiny).log().mean()


def brier_score(probability: Tensor, label: Tensor) -> Tensor:
    """Mean squared distance to the one-hot label, summed over classes (0 is best, 2 is worst)."""
    one_hot = torch.nn.functional.one_hot(label, probability.shape[-1]).to(probability.dtype)
    return (probability - one_hot).square().sum(-1).mean()


def expected_calibration_error(probability: Tensor, label: Tensor, bins: int = 15) -> Tensor:
    """Mean gap between confidence and accuracy over `bins` equal bins of confidence, weighted by their size.

    Example:
        >>> sure_and_right = torch.tensor([[1.0, 0.0]])
        >>> expected_calibration_error(sure_and_right, torch.tensor([0]))
        tensor(0.)
    """
    if bins < 1:
        raise ValueError(f"Expected `bins` to be 1 or more, but got {bins}.")
    confidence, predicted = probability.max(-1)
    correct = (predicted == label).to(probability.dtype)
    index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=probability.dtype, device=probability.device)
    gap.index_add_(0, index, correct - confidence)
    return gap.abs().sum() / len(label)


def confusion_counts(predicted: np.ndarray, label: np.ndarray, classes: int) -> np.ndarray:
    """Number of samples of each true class (row) that got each prediction (column).

    >>> confusion_counts(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    array([[1, 1],
           [0, 1]])
    """
    counts = np.zeros((classes, classes), dtype=int)
    np.add.at(counts, (label, predicted), 1)
    return counts


def balanced_accuracy(counts: np.ndarray) -> float:
    """Mean over the classes that occur of the share that is predicted right.

    >>> balanced_accuracy(np.array([[3, 1], [0, 1]]))
    0.875
    """
    total = counts.sum(1)
    return float((counts.diagonal()[total > 0] / total[total > 0]).mean())


def macro_f1(counts: np.ndarray) -> float:
    """Mean over the classes that occur or are predicted of F1 = 2 right / (true + predicted).

    >>> round(macro_f1(np.array([[3, 1], [0, 1]])), 3)
    0.762
    """
    both = counts.sum(0) + counts.sum(1)
    return float((2 * counts.diagonal()[both > 0] / both[both > 0]).mean())


def paired_draws(change: np.ndarray, random: np.random.Generator, resamples: int = RESAMPLES) -> np.ndarray:
    """Means of a change over samples and seeds drawn with replacement, one per resample: (resamples,).

    A sample is drawn together with its results of every seed, since they are not independent. Samples with
    equal changes are interchangeable, so a resample is a multinomial count of each kind of sample, which is
    fast for any number of rows.

    Args:
        change: (seeds, samples) or (samples,), e.g. correct after minus correct before: -1, 0 or 1.
        random: generator.
        resamples: number of means.

    Example:
        >>> change = np.repeat([1, 0], [30, 70])
        >>> draws = paired_draws(change, np.random.default_rng(0))
        >>> draws.shape, bool(abs(draws.mean() - 0.3) < 0.01)
        ((2000,), True)
    """
    change = np.atleast_2d(np.asarray(change))
    seeds, samples = change.shape
    kinds, count = np.unique(change, axis=1, return_counts=True)
    rows = random.multinomial(samples, count / samples, resamples)
    weight = random.multinomial(seeds, np.full(seeds, 1 / seeds), resamples)
    return np.einsum("rk,sk,rs->r", rows, kinds, weight, optimize=True) / (samples * seeds)


def interval(draws: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The central interval that holds a share `level` of the draws."""
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def paired_interval(changes: Sequence[np.ndarray], seed: int = 0, level: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval of the mean over targets of each target's mean change.

    Args:
        changes: for each target, (seeds, samples) or (samples,).
        seed: of the resampling.
        level: of the interval.
    """
    random = np.random.default_rng(seed)
    return interval(np.mean([paired_draws(change, random) for change in changes], axis=0), level)
