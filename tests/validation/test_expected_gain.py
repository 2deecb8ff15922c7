"""The interval over domains: how it depends on their number and on how their gains differ."""

import numpy as np
import pytest

from sourceward.validation.expected_gain import (
    ACCURACY_PRIOR,
    CHANGE_PRIOR,
    PRIOR_DOF,
    PRIOR_SD,
    ExpectedGain,
    accuracy_interval,
    domain_interval,
    gain_of_changes,
    is_safe,
    standard_errors,
)


def test_the_interval_is_centred_on_the_mean_gain():
    low, high = domain_interval(np.array([0.01, 0.02, 0.03]))
    assert (low + high) / 2 == pytest.approx(0.02)


def test_more_domains_that_differ_as_much_narrow_the_interval():
    few, many = np.array([0.01, 0.02, 0.03]), np.array([0.01, 0.02, 0.03] * 4)
    assert np.ptp(domain_interval(many)) < np.ptp(domain_interval(few))


def test_domains_that_differ_more_widen_it():
    assert np.ptp(domain_interval(np.array([0.0, 0.02, 0.04]))) > np.ptp(
        domain_interval(np.array([0.01, 0.02, 0.03]))
    )


def test_equal_gains_still_leave_the_prior():
    assert np.ptp(domain_interval(np.full(3, 0.02))) > 0


def test_the_gain_on_one_more_domain_is_less_certain_than_the_mean():
    gains = np.array([0.01, 0.02, 0.03])
    assert np.ptp(domain_interval(gains, new=True)) > np.ptp(domain_interval(gains))


def test_the_interval_covers_the_gain_on_a_new_domain_as_often_as_it_says():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(2000):
        spread = PRIOR_SD * np.sqrt(PRIOR_DOF / rng.chisquare(PRIOR_DOF))  # the prior
        *gains, new = rng.normal(0.01, spread, 4)
        low, high = domain_interval(np.array(gains), new=True)
        inside += low <= new <= high
    assert inside / 2000 == pytest.approx(0.9, abs=4 * np.sqrt(0.9 * 0.1 / 2000))


def test_a_loss_counts_beyond_its_noise():
    gains = np.array([0.03, 0.03, 0.03, -0.004])
    assert is_safe(gains, np.full(4, 0.003))
    assert not is_safe(gains, np.full(4, 0.002))


def test_standard_errors_fall_with_the_number_of_samples():
    change = np.tile([1.0, 0.0, 0.0, -1.0], 25)
    one, four = standard_errors([change, np.tile(change, 4)])
    assert one / four == pytest.approx(2, rel=0.02)


def test_the_accuracy_on_a_new_domain_is_covered_as_often_as_stated():
    rng, inside, (dof, scale) = np.random.default_rng(0), 0, ACCURACY_PRIOR
    for _ in range(2000):
        spread = scale * np.sqrt(dof / rng.chisquare(dof))  # the prior
        *accuracies, new = rng.normal(0.5, spread, 4)
        new = min(max(new, 0.0), 1.0)
        low, high = accuracy_interval(np.array(accuracies))
        inside += low <= new <= high
    assert inside / 2000 > 0.9 - 4 * np.sqrt(0.9 * 0.1 / 2000)


def test_an_interval_of_accuracies_stays_between_0_and_1():
    assert accuracy_interval(np.array([0.05, 0.5, 0.95])) == (0.0, 1.0)


def test_equal_accuracies_of_three_domains_are_no_certainty():
    low, high = accuracy_interval(np.full(3, 0.6))
    assert 0.3 < low < 0.5 < 0.7 < high < 0.9


def test_the_gain_grows_with_the_share_of_labels_that_change():
    gains, changed = np.array([0.04, 0.02, 0.03]), np.array([0.1, 0.1, 0.1])
    few, many = (gain_of_changes(gains, changed, share, 1000) for share in (0.1, 0.4))
    assert few[0] == pytest.approx(0.03)
    assert many[0] == pytest.approx(0.12)
    assert np.ptp(many) > np.ptp(few)


def test_no_gain_or_loss_exceeds_the_share_of_labels_that_change():
    gain, low, high = gain_of_changes(np.array([0.05, -0.05, 0.01]), np.full(3, 0.1), 0.02, 10)
    assert -0.02 == low < gain < high == 0.02
    assert gain_of_changes(np.array([0.05, 0.0, 0.0]), np.array([0.1, 0.0, 0.0]), 0.0, 10) == (0, 0, 0)


def test_fewer_rows_widen_the_interval():
    gains, changed = np.full(3, 0.03), np.full(3, 0.1)
    assert np.ptp(gain_of_changes(gains, changed, 0.1, 50)) > np.ptp(
        gain_of_changes(gains, changed, 0.1, 5000)
    )


def test_the_gain_of_changed_labels_is_covered_as_often_as_stated():
    """Gains per changed label differ between domains as the prior says, at most by 0.3."""
    rng, inside, (dof, scale), rows = np.random.default_rng(0), 0, CHANGE_PRIOR, 2000
    for _ in range(2000):
        spread = scale * np.sqrt(dof / rng.chisquare(dof))
        each, share = rng.normal(0.3, min(spread, 0.3), 4), rng.uniform(0.1, 0.4, 4)
        _, low, high = gain_of_changes((each * share)[:3], share[:3], share[3], rows)
        noise = rng.normal(0, np.sqrt(share[3] / rows))
        inside += low <= each[3] * share[3] + noise <= high
    assert 0.88 < inside / 2000 < 0.98


def expected(**more) -> ExpectedGain:
    known = {"gain": 0.03, "low": 0.0, "high": 0.06, "per_source": {"a": 0.04, "b": 0.02, "c": 0.03}}
    return ExpectedGain(**known, unadapted=0.6, num_steps=0, **{"adapts": True} | more)


def test_unlabeled_samples_say_what_adaptation_gains_there():
    before, after = np.zeros(100, dtype=int), np.repeat([0, 1], [80, 20])
    found = expected(changed={"a": 0.1, "b": 0.1, "c": 0.1}).on(before, after)
    assert found["changed"] == pytest.approx(0.2)
    assert found["gain"] == pytest.approx(0.06)
    assert found["low"] < found["gain"] < found["high"]


@pytest.mark.parametrize(
    "more", [{}, {"changed": {"a": 0.0, "b": 0.0, "c": 0.0}}, {"adapts": False, "changed": {"a": 0.1}}]
)
def test_nothing_is_estimated_without_changes_on_held_out_sources(more):
    assert expected(**more).on(np.zeros(3), np.ones(3)) is None
