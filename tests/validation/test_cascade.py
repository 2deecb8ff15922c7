"""The cascade: which thresholds held-out sources choose, and what they keep."""

import numpy as np
import pytest

from sourceward.adaptation.base import AdaptationResult
from sourceward.adaptation.tta import CopyResult, stop_early
from sourceward.validation.cascade import NEVER, choose_cascade, choose_levels


def two_class(sure, second):
    """Probabilities (rows, 2) whose highest is `sure`, of the second class where a row says so."""
    return np.where(second[:, None], np.column_stack([1 - sure, sure]), np.column_stack([sure, 1 - sure]))


def source(rows: int = 1000, doubtful: float = 0.3, seed: int = 0):
    """Three levels of two classes, all labels 1: copies correct half of the doubtful samples that are wrong,
    and change no others; after the first copy half of the samples are predicted with confidence."""
    rng = np.random.default_rng(seed)
    sure = rng.uniform(0.5, 1, rows)
    wrong = (sure < 0.5 + doubtful / 2) & (rng.uniform(size=rows) < 0.6)
    corrected = rng.uniform(size=rows) < 0.5
    settled = rng.uniform(size=rows) < 0.5
    image, last = two_class(sure, ~wrong), two_class(sure, ~wrong | corrected)
    first = two_class(np.where(settled, 0.9, 0.6), ~wrong | (corrected & settled))
    return [image, first, last], np.ones(rows, dtype=int)


def answer(levels, thresholds):
    """Labels of a cascade, sample by sample."""
    found = []
    for row in zip(*levels):
        stop = (p for p, threshold in zip(row, thresholds) if p.max() >= threshold)
        found.append(next(stop, row[-1]).argmax())
    return np.array(found)


def gain(levels, labels):
    return np.mean(
        [(found == 1).mean() - (own[0].argmax(1) == 1).mean() for own, found in zip(levels, labels)]
    )


SOURCES = [source(seed=seed) for seed in range(3)]
LEVELS, LABELS = zip(*SOURCES)


def test_confident_samples_stop_and_the_gain_stays():
    found = choose_cascade(LEVELS, LABELS)
    assert found.stopped[0] == pytest.approx(0.7, abs=0.04)
    assert found.stopped[1] == pytest.approx(0.15, abs=0.04), "half of the others"
    full = gain(LEVELS, [own[-1].argmax(1) for own in LEVELS])
    kept = gain(LEVELS, [answer(own, found.thresholds) for own in LEVELS])
    assert full > kept >= 0.95 * full
    shares = [np.mean([(p.max(1) >= t).mean() for p in (own[0] for own in LEVELS)]) for t in found.thresholds]
    assert found.stopped[0] == pytest.approx(shares[0])


def test_few_labels_of_all_copies_are_lost():
    found = choose_cascade(LEVELS, LABELS)
    lost, changed = (
        np.mean([(answer(own, thresholds) != own[-1].argmax(1)).mean() for own in LEVELS])
        for thresholds in (found.thresholds, (0.0,))
    )
    assert 0 < lost <= 0.05 * changed


def test_a_larger_share_of_the_gain_stops_fewer():
    loose, strict = (choose_cascade(LEVELS, LABELS, kept) for kept in (0.5, 1.0))
    assert loose.thresholds < strict.thresholds
    assert sum(loose.stopped) > sum(strict.stopped)
    for own in LEVELS:
        assert np.array_equal(answer(own, strict.thresholds), own[-1].argmax(1)), "no label is lost"


def test_a_loss_among_the_confident_is_not_hidden_by_luck():
    """Labels that copies spoil count as lost like those that they correct."""
    sure = np.linspace(0.5, 1, 100)
    image, copies = two_class(sure, sure > 0.55), two_class(sure, sure < 0.9)
    found = choose_cascade([[image, copies]], [np.where(sure < 0.9, 1, 0)])
    assert found is None or found.stopped[0] <= 0.05


def test_equal_confidences_stop_together():
    image = two_class(np.array([0.9, 0.8, 0.8, 0.6]), np.array([True, True, True, False]))
    copies = two_class(np.array([0.9, 0.8, 0.8, 0.6]), np.array([True, False, True, True]))
    found = choose_cascade([[image, copies]], [np.array([1, 0, 1, 1])], kept=1.0)
    assert found.thresholds == (0.9,)


def test_no_gain_no_cascade():
    levels, label = source()
    assert choose_cascade([[levels[0], levels[0]]], [label]) is None
    assert choose_cascade([levels[::-1]], [label]) is None


def test_a_level_without_any_safe_threshold_never_stops():
    sure = np.full(10, 0.9)
    image, last = two_class(sure, np.zeros(10, bool)), two_class(sure, np.ones(10, bool))
    found = choose_cascade([[image, last, last]], [np.ones(10, dtype=int)])
    assert found.thresholds == (NEVER, pytest.approx(0.9))
    assert found.stopped == (0.0, pytest.approx(1.0))


def test_passes_count_what_is_computed():
    found = choose_cascade(LEVELS, LABELS)
    first, second = found.stopped
    expected = first * 1 + second * 2 + (1 - first - second) * 5
    assert found.passes((1, 3)) == pytest.approx(expected)


def result(probability):
    rows = len(probability)
    none = np.zeros((rows, 1), np.float32)
    features, status = np.zeros((rows, 1, 2), np.float32), np.full(rows, "adapted")
    return AdaptationResult(features, probability, probability[:, None], none, none, none.astype(int), status)


def copies(levels):
    """The image, a transform that tells nothing, and one that decides."""
    image, _, last = levels
    undecided = np.full_like(image, 0.5)
    return [
        CopyResult(result(image), 1.0),
        *map(CopyResult, map(result, (undecided, last)), (1.0, 9.0), ("crop", "hflip")),
    ]


def test_the_transform_that_decides_comes_first():
    made = [copies(levels) for levels in LEVELS]
    names, found = choose_levels("crop+hflip", made, LABELS, 0.95)
    assert names == "hflip+crop"
    assert sum(found.stopped) > 0.95
    full, kept = (
        np.mean([(stop_early(own, names, t).label == 1).mean() for own in made])
        for t in ((), found.thresholds)
    )
    plain = np.mean([(own[0].result.label == 1).mean() for own in made])
    assert kept - plain >= 0.95 * (full - plain) > 0


def test_one_transform_has_one_threshold():
    made = [[own[0], own[2]] for own in map(copies, LEVELS)]
    names, found = choose_levels("hflip", made, LABELS, 0.95)
    assert (names, len(found.thresholds)) == ("hflip", 1)
