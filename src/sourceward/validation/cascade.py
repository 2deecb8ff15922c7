"""The cascade of test-time augmentation: from which confidence on a sample needs no copies.

A sample whose prediction without copies has a probability above a threshold keeps that prediction, and its
copies are not computed. The threshold is the lowest one at which held-out sources keep most of what they gain
by test-time augmentation. Each sample decides for itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

KEPT_GAIN = 0.95
"""Share of the gain that the cascade must keep."""

CANDIDATES = 200
"""Thresholds to try: quantiles of the confidence on held-out sources."""


class Cascade(NamedTuple):
    """A threshold and what it does on held-out sources."""

    threshold: float
    """Probability from which a prediction without copies is the answer."""
    stopped: float
    """Share of the samples of held-out sources that stop there, the mean over sources."""


def choose_cascade(
    confidence: Sequence[np.ndarray],
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    kept: float = KEPT_GAIN,
) -> Cascade | None:
    """The lowest threshold from which on every higher one keeps the share `kept` of the gain.

    Args:
        confidence: highest probability without copies, of each sample of each held-out source.
        before: whether the prediction without copies is correct, 0 or 1.
        after: the same of the prediction with copies.
        kept: share of the gain, above 0 and at most 1.

    Returns:
        None where copies gain nothing, or no threshold saves any.

    >>> sure, right, more = np.array([0.9, 0.8, 0.4]), np.array([1.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0])
    >>> choose_cascade([sure], [right], [more]).stopped.__round__(2)
    0.67
    """
    full = _gain(before, after)
    if full <= 0:
        return None
    best = None
    for threshold in np.quantile(np.concatenate(confidence), np.linspace(1, 0, CANDIDATES + 1)):
        stops = [own >= threshold for own in confidence]
        if _gain(before, answers(stops, before, after)) < kept * full - 1e-12:
            break
        best = Cascade(float(threshold), float(np.mean([own.mean() for own in stops])))
    return best


def answers(
    stops: Sequence[np.ndarray], before: Sequence[np.ndarray], after: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Correctness with the cascade: that of the plain prediction where a sample stops."""
    return [np.where(own, first, last) for own, first, last in zip(stops, before, after)]


def _gain(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> float:
    return float(np.mean([last.mean() - first.mean() for first, last in zip(before, after)]))
