"""The cascade of test-time augmentation: from which confidence on a sample needs no more copies.

Confidence is the probability of the first class among the two most probable ones, see `tta.lead`. A sample
whose prediction without copies has a confidence above a threshold keeps that prediction; one whose average
over the image and the copies of the first transform has a confidence above a second threshold keeps that; all
others get every copy. Each sample decides for itself.

The thresholds are the lowest ones at which the label of the cascade is still that of all copies. A share of
the labels that copies change may be lost, half of it at each level. Labels of samples are compared and not
accuracies, since a gain is the small difference of many corrected and many spoilt labels: thresholds that
keep it on held-out sources by chance do not keep it on the next domain.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sourceward.adaptation.tta import CopyResult, lead, level_average, levels
from sourceward.data.transforms import parse_transforms

KEPT_GAIN = 0.95
"""Share of the gain that the cascade must keep."""

MARGINS = (1.0, 0.5, 0.25, 0.0)
"""Parts of the allowed loss to try: fewer labels are lost where held-out sources would lose more gain."""

NEVER = 2.0
"""A threshold above every probability."""


class Cascade(NamedTuple):
    """Thresholds, and what they do on held-out sources."""

    thresholds: tuple[float, ...]
    """Of each level but the last."""
    stopped: tuple[float, ...]
    """Share of the samples of held-out sources that stop there, the mean over sources."""

    def passes(self, copies: Sequence[int]) -> float:
        """Backbone passes for each sample, from the number of copies that each level adds to the image."""
        left = 1 - np.cumsum(self.stopped)
        return 1 + float(np.dot(left, copies))


def choose_levels(
    names: str, copies: Sequence[Sequence[CopyResult]], label: Sequence[np.ndarray], kept: float
) -> tuple[str, Cascade]:
    """The cascade of some transforms that takes the fewest passes of the backbone on held-out sources: the
    transforms, that whose copies are made first in front, and the thresholds.

    Args:
        names: of the transforms, joined by +.
        copies: of each held-out source.
        label: of each held-out source.
        kept: see `choose_cascade`.
    """
    single, best, least = parse_transforms(names), (names, Cascade((), ())), float("inf")
    for first in single:
        rest = [name for name in single if name != first]
        order, groups = "+".join([first, *rest]), [group for group in ([first], rest) if group]
        some = levels(order, [0.0] * len(groups))
        found = choose_cascade(
            [[level_average(c, o).probabilities for o in some] for c in copies], label, kept
        )
        if found is not None and (cost := found.passes([count(copies[0], g) for g in groups])) < least:
            best, least = (order, found), cost
    return best


def count(copies: Sequence[CopyResult], names: Sequence[str]) -> int:
    """How many copies these transforms make."""
    return sum(copy.name in names for copy in copies)


def choose_cascade(
    probabilities: Sequence[Sequence[np.ndarray]], label: Sequence[np.ndarray], kept: float = KEPT_GAIN
) -> Cascade | None:
    """The lowest thresholds that keep the labels of all copies, and the share `kept` of their gain.

    Args:
        probabilities: of each held-out source, at each level: (samples, classes), the last of all copies.
        label: of each held-out source, (samples,).
        kept: share of the gain, above 0 and at most 1.

    Returns:
        None where copies gain nothing, or no threshold saves any.

    >>> image = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    >>> copies = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> choose_cascade([[image, copies]], [np.array([0, 0, 1])]).thresholds
    (0.8,)
    """
    at = [np.concatenate(level) for level in zip(*probabilities)]
    sizes = [len(own) for own in label]
    weight = np.repeat([1 / (len(sizes) * size) for size in sizes], sizes)
    right, first, last = np.concatenate(label), at[0].argmax(1), at[-1].argmax(1)
    gain = weight @ ((last == right) * 1.0 - (first == right))
    if gain <= 0:
        return None
    for margin in MARGINS:
        allowed = margin * (1 - kept) * (weight @ (first != last))
        thresholds, answer, stopped = _thresholds(at, weight, allowed)
        if weight @ ((answer == right) * 1.0 - (first == right)) >= kept * gain - 1e-12:
            break
    return Cascade(thresholds, stopped) if sum(stopped) else None


def _thresholds(
    at: Sequence[np.ndarray], weight: np.ndarray, allowed: float
) -> tuple[tuple[float, ...], np.ndarray, tuple[float, ...]]:
    """Thresholds by which this share of the samples loses the label of all copies; the labels of the cascade,
    and the share that stops at each level."""
    answer, left, lost = at[-1].argmax(1), np.ones(len(weight), dtype=bool), 0.0
    thresholds, stopped = [], []
    for place, probability in enumerate(at[:-1]):
        sure, own = lead(probability), probability.argmax(1)
        changed = weight * (left & (own != at[-1].argmax(1)))
        threshold = _lowest(sure[left], changed[left], allowed * (place + 1) / (len(at) - 1) - lost)
        stops = left & (sure >= threshold)
        answer, lost, left = np.where(stops, own, answer), lost + changed[stops].sum(), left & ~stops
        thresholds.append(threshold)
        stopped.append(float(weight @ stops))
    return tuple(thresholds), answer, tuple(stopped)


def _lowest(sure: np.ndarray, cost: np.ndarray, allowed: float) -> float:
    """The lowest confidence such that samples of at least this confidence cost no more than is allowed."""
    order = np.argsort(-sure)
    over = np.flatnonzero(np.cumsum(cost[order]) > allowed + 1e-12)
    if not len(over):
        return float(sure.min(initial=NEVER))
    above = sure[sure > sure[order[over[0]]]]
    return float(above.min(initial=NEVER))
