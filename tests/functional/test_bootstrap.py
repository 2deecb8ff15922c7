"""The paired bootstrap against the standard error of a mean, and against drawing rows one by one."""

import numpy as np
import pytest

from sourceward.functional.metrics import interval, paired_draws, paired_interval


def changes(seeds, samples, seed=0):
    return np.random.default_rng(seed).integers(-1, 2, (seeds, samples))


def test_the_standard_deviation_is_the_standard_error_of_the_mean():
    """With one seed the draws have the standard error of a mean, to the Monte Carlo error of 20,000 draws."""
    change = changes(1, 400)
    draws = paired_draws(change, np.random.default_rng(1), 20_000)
    error = change.std() / np.sqrt(400)
    assert draws.mean() == pytest.approx(change.mean(), abs=5 * error / np.sqrt(20_000))
    assert draws.std() == pytest.approx(error, rel=5 / np.sqrt(2 * 20_000))


def test_counts_of_equal_samples_are_equivalent_to_samples():
    """The shortcut and rows drawn one by one have the same distribution."""
    change, random = changes(3, 60), np.random.default_rng(2)
    quick = paired_draws(change, random, 20_000)
    rows = random.integers(60, size=(20_000, 60))
    seeds = random.integers(3, size=(20_000, 3))
    slow = np.array([change[s][:, r].mean() for s, r in zip(seeds, rows)])
    assert quick.std() == pytest.approx(slow.std(), rel=0.05)
    assert np.quantile(quick, [0.025, 0.975]) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.012)


def test_seeds_that_disagree_widen_the_interval():
    agree = np.tile(np.repeat([1, 0], 50), (4, 1))
    disagree = np.concatenate([np.ones((2, 100), int), np.zeros((2, 100), int)])
    width = [np.ptp(paired_interval([change])) for change in (agree, disagree)]
    assert width[1] > 3 * width[0]


def test_targets_have_equal_weight_whatever_their_size():
    low, high = paired_interval([np.ones(10), np.zeros(1000)])
    assert low == pytest.approx(0.5)
    assert high == pytest.approx(0.5)


def test_interval_is_central():
    assert interval(np.arange(101), 0.9) == pytest.approx((5, 95))
