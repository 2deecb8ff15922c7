"""What the experiment `harm` computes from cases: rules, noise and significance."""

import numpy as np
import pytest

from sourceward.bench.experiments.harm import (
    GUARDS,
    Case,
    Changes,
    rule_cautious,
    rule_now,
    shrunken,
    significant_losses,
    summary,
)


def changes(gain: float, changed: float = 0.2, rows: int = 1000) -> Changes:
    """So many labels change, and their gains and losses add up to this gain."""
    count = round(rows * changed)
    correct = np.zeros(rows)
    right = round((count + rows * gain) / 2)
    correct[:right], correct[right:count] = 1, -1
    return Changes(correct, np.arange(rows) < count)


def case(held: tuple[float, ...], gain: float, changed: tuple[float, ...] = (0.2, 0.2, 0.2)) -> Case:
    parts = [changes(own, share) for own, share in zip(held, changed)]
    return Case(("a", "b", "c"), "d", parts, changes(gain), 0.5, GUARDS[0])


def test_the_gain_on_a_target_is_estimated_from_its_changed_labels():
    own = case((0.03, 0.03, 0.03), 0.06, changed=(0.1, 0.1, 0.1))
    gain, low, high = own.estimated
    assert gain == pytest.approx(0.06)
    assert low < gain < high


def test_what_is_off_gains_nothing_and_loses_nothing():
    found = summary([case((0.03, 0.03, -0.05), -0.04), case((0.05, 0.05, 0.05), 0.04)])
    on, now = (found["rules"][name] for name in ("always on", "now: interval over domains"))
    assert (on["on"], on["worst"], on["losing_more_than_half_a_point"]) == (1, pytest.approx(-0.04), 1)
    assert (now["on"], now["worst"], now["losing_more_than_half_a_point"]) == (0.5, 0, 0)
    assert now["mean_gain"] == pytest.approx(0.02)
    assert found["rules"]["ORACLE: on where the target gains"]["worst"] == 0


def test_the_interval_of_one_new_domain_is_the_more_cautious_rule():
    wide = case((0.09, 0.05, 0.02), 0.01)
    assert rule_now(wide)
    assert not rule_cautious(wide)
    even = case((0.09, 0.08, 0.085), 0.01)
    assert rule_now(even)
    assert rule_cautious(even)


def test_losses_within_their_noise_are_not_significant():
    rng, errors = np.random.default_rng(0), np.full(140, 0.02)
    noise = rng.normal(0, 0.02, 140)
    assert noise.min() < -0.04
    assert significant_losses(noise, errors) == 0
    assert significant_losses(np.where(np.arange(140) < 3, -0.15, noise), errors) == 3


def test_shrinking_takes_most_of_the_noise_from_the_worst():
    rng = np.random.default_rng(0)
    true = rng.normal(0.04, 0.01, 140)
    seen = true + rng.normal(0, 0.02, 140)
    likely = shrunken(seen, np.full(140, 0.02))
    assert abs(likely.min() - true.min()) < abs(seen.min() - true.min()) / 2
    assert np.square(likely - true).mean() < np.square(seen - true).mean()
