"""The cascade: which threshold held-out sources choose, and that deployed predictions obey it."""

import numpy as np
import pytest

from sourceward.validation.cascade import answers, choose_cascade


def source(rows: int = 1000, doubtful: float = 0.3, corrected: float = 0.5, seed: int = 0):
    """Confidence and correctness: copies correct some of the doubtful samples, and none of the others."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(size=rows)
    before = ((confidence > doubtful) | (rng.uniform(size=rows) < 0.4)).astype(float)
    after = np.maximum(before, rng.uniform(size=rows) < corrected)
    return confidence, before, after


def test_confident_samples_stop_and_the_gain_stays():
    parts = [source(seed=seed) for seed in range(3)]
    found = choose_cascade(*zip(*parts))
    assert found.stopped == pytest.approx(0.7, abs=0.04)
    confidence, before, after = zip(*parts)
    kept = answers([own >= found.threshold for own in confidence], before, after)
    full, left = (np.mean([b.mean() - a.mean() for a, b in zip(before, last)]) for last in (after, kept))
    assert full > left >= 0.95 * full


def test_a_larger_share_of_the_gain_stops_fewer():
    parts = [source(seed=seed) for seed in range(3)]
    loose, strict = (choose_cascade(*zip(*parts), kept) for kept in (0.5, 1.0))
    assert loose.threshold < strict.threshold
    assert loose.stopped > strict.stopped


def test_every_higher_threshold_keeps_the_gain_too():
    """Losses among the confident make low thresholds look good by chance: they are not taken."""
    confidence = np.linspace(0, 1, 100)
    before = (confidence < 0.1).astype(float)  # copies break the least confident, and correct the others
    after = 1 - before
    found = choose_cascade([confidence], [before], [after])
    assert found.stopped < 0.06


def test_no_gain_no_cascade():
    confidence, before, after = source()
    assert choose_cascade([confidence], [before], [before]) is None
    assert choose_cascade([confidence], [after], [before]) is None
