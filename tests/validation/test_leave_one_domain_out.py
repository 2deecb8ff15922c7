"""Leave-one-domain-out validation: what is chosen, what gain is expected, what an estimator does with it."""

import copy

import numpy as np
import pytest
import torch

from sourceward import EnergyAdapter
from sourceward.adaptation.tta import CopyFeatures
from sourceward.functional.aggregation import BY_ENERGY
from sourceward.settings import AdaptSettings
from sourceward.validation.folds import Source, feature_folds
from sourceward.validation.leave_one_domain_out import LENGTHS, choose, estimate
from tests.helpers import QUICK, make_domains

X, Y, SOURCE = make_domains()
AUTO = {**QUICK, "num_steps": "auto"}


def changes(*per_candidate: tuple[float, ...], rows: int = 1000) -> list[list[np.ndarray]]:
    """Changes of every sample for each candidate and held-out source, from the gains."""

    def of(gain: float) -> np.ndarray:
        count = round(abs(gain) * rows)
        return np.repeat([np.sign(gain), 0.0], [count, rows - count])

    return [[of(gain) for gain in by_source] for by_source in per_candidate]


def test_the_first_safe_candidate_is_chosen():
    assert choose(changes((0.01, 0.01, 0.012), (0.1, 0.1, 0.1))) == 0
    assert choose(changes((-0.01, 0.0, 0.0), (0.01, 0.01, 0.01))) == 1
    assert choose(changes((-0.01, 0.0, 0.0), (0.0, -0.01, 0.0))) is None


def test_the_cheapest_of_nearly_the_largest_gain_is_chosen():
    gains = changes((0.01, 0.01, 0.01), (0.02, 0.02, 0.02), (0.019, 0.019, 0.019))
    assert choose(gains, costs=(1, 5, 3)) == 1
    assert choose(gains, costs=(1, 5, 3), kept=0.95) == 2
    assert choose(gains, costs=(1, 5, 3), kept=0.5) == 0
    assert choose(gains, costs=(1, 5, 5), kept=0.95) == 1, "of two equally cheap ones the better"
    assert choose(changes((-0.01, 0.0, 0.0), (0.02, 0.02, 0.02)), costs=(1, 5), kept=0.1) == 1


def test_a_large_gain_does_not_hide_a_held_out_source_that_loses():
    assert choose(changes((0.4, 0.3, -0.03))) is None


def test_a_loss_within_its_noise_is_tolerated():
    assert choose(changes((0.04, 0.03, -0.001))) == 0


def test_gains_that_differ_too_much_between_domains_are_not_relied_on():
    assert choose(changes((0.0, 0.0, 0.06))) is None
    assert choose(changes((0.02, 0.02, 0.02))) == 0


def test_a_candidate_must_be_worth_its_cost():
    assert choose(changes((0.004, 0.004, 0.004)), least=0.005) is None


def correct(*accuracies: float, rows: int = 1000) -> list[np.ndarray]:
    """Correct predictions on held-out sources, of these accuracies."""
    return [(np.arange(rows) < round(rows * share)).astype(float) for share in accuracies]


def test_the_expected_gain_is_the_mean_over_held_out_sources():
    before = correct(0.5, 0.6)
    gained = [after - first for after, first in zip(correct(0.51, 0.61), before)]
    found = estimate("ab", gained, before, AdaptSettings(10), "hflip", True)
    assert found.gain == pytest.approx(0.01)
    assert found.per_source == pytest.approx({"a": 0.01, "b": 0.01})
    assert found.unadapted == pytest.approx(0.55)
    assert found.low < found.gain < found.high
    assert "+1.0 points" in str(found)
    assert "10 steps and hflip" in str(found)


def test_the_expected_accuracy_is_that_of_what_was_chosen():
    before = correct(0.5, 0.6, 0.7)
    gained = [after - first for after, first in zip(correct(0.52, 0.62, 0.72), before)]
    on = estimate("abc", gained, before, AdaptSettings(5), "", True)
    assert on.accuracy == pytest.approx(0.62)
    assert on.accuracy_per_source == pytest.approx({"a": 0.52, "b": 0.62, "c": 0.72})
    assert 0 <= on.accuracy_low < 0.52 < 0.72 < on.accuracy_high <= 1
    assert on.accuracy_text.startswith("62.0 % (90 % interval for a new domain: ")
    off = estimate("abc", gained, before, AdaptSettings(0), "", False)
    assert off.accuracy == off.unadapted == pytest.approx(0.6)


def test_every_candidate_is_recorded_with_its_gain_on_each_held_out_source():
    found = EnergyAdapter(**AUTO).fit(X, Y, SOURCE).expected_gain_
    assert list(found.tried) == [f"{steps} steps" for steps in LENGTHS]
    assert all(gains.keys() == found.per_source.keys() for gains in found.tried.values())


def test_off_has_no_gain_and_says_what_adaptation_would_do():
    before = correct(0.5, 0.5)
    lost = [after - first for after, first in zip(correct(0.4, 0.45), before)]
    found = estimate("ab", lost, before, AdaptSettings(0), "", False)
    assert (found.gain, found.low, found.high, found.adapts) == (0, 0, 0, False)
    assert "adaptation is off" in str(found)
    assert "a -10.0, b -5.0" in str(found)


def folds_with_copies(helps: bool):
    """Folds whose copies are clean features, while the test rows carry noise; or the other way round."""
    sources = [
        Source(torch.from_numpy(X[s == SOURCE]).float(), torch.from_numpy(Y[s == SOURCE])) for s in range(3)
    ]
    generator = torch.Generator().manual_seed(0)
    for fold in feature_folds(sources, "abc"):
        noisy = fold.feature + 3 * torch.randn(fold.feature.shape, generator=generator)
        test, copy = (noisy, fold.feature) if helps else (fold.feature, noisy)
        yield fold._replace(feature=test, copies={"hflip": [CopyFeatures(copy, 3.0)]})


@pytest.mark.parametrize("helps", [True, False])
def test_transforms_are_used_where_held_out_sources_gain(helps):
    sources = [
        Source(torch.from_numpy(X[s == SOURCE]).float(), torch.from_numpy(Y[s == SOURCE])) for s in range(3)
    ]
    est = EnergyAdapter(**AUTO)
    est.fit_sources(sources, "abc", np.arange(3), folds=folds_with_copies(helps), tta=("hflip",))
    assert est.tta_ == ("hflip" if helps else "")
    assert est.expected_gain_.tta == est.tta_
    assert (est.expected_gain_.gain > 0.05) == helps
    assert bool(est.tta_thresholds_) == helps
    changed = est.expected_gain_.changed
    assert bool(changed) == helps
    assert all(abs(est.expected_gain_.per_source[name]) <= share < 1 for name, share in changed.items())
    assert (0 < sum(est.expected_gain_.stopped) < 1) == helps


def test_the_expected_gain_is_that_of_the_cascade(tmp_path):
    """Fewer copies, at least the share of the gain that was asked for; all copies where none is saved."""
    sources = [
        Source(torch.from_numpy(X[s == SOURCE]).float(), torch.from_numpy(Y[s == SOURCE])) for s in range(3)
    ]

    def fitted(kept: float) -> EnergyAdapter:
        est = EnergyAdapter(**AUTO)
        folds = folds_with_copies(True)
        return est.fit_sources(sources, "abc", np.arange(3), folds=folds, tta=("hflip",), kept_gain=kept)

    full, most, half = (fitted(kept) for kept in (0.0, 0.95, 0.5))
    assert full.tta_thresholds_ == ()
    assert "needed no copies" not in str(full.expected_gain_)
    assert half.tta_thresholds_ < most.tta_thresholds_
    assert sum(half.expected_gain_.stopped) > sum(most.expected_gain_.stopped) > 0
    assert half.expected_gain_.gain < full.expected_gain_.gain
    assert "needed no copies" in str(most.expected_gain_)
    most.save(tmp_path / "est")
    again = EnergyAdapter.load(tmp_path / "est")
    assert (again.tta_thresholds_, again.expected_gain_) == (most.tta_thresholds_, most.expected_gain_)


@pytest.fixture(scope="module")
def auto() -> EnergyAdapter:
    return EnergyAdapter(**AUTO).fit(X, Y, sample_domain=SOURCE)


def test_auto_chooses_among_the_lengths_and_estimates(auto):
    assert auto.num_steps_ in LENGTHS
    assert set(auto.expected_gain_.per_source) == {str(name) for name in auto.sources_}
    assert -1 <= auto.expected_gain_.low <= auto.expected_gain_.gain <= auto.expected_gain_.high <= 1


@pytest.mark.parametrize(("num_steps", "adapts"), [(5, True), (2, True), (0, False)])
def test_auto_predicts_as_its_choice_does(auto, monkeypatch, num_steps, adapts):
    monkeypatch.setattr(auto, "num_steps_", num_steps)
    monkeypatch.setattr(auto, "adapts_", adapts)
    chosen = auto.predict_proba(X)
    explicit = copy.deepcopy(auto).set_params(num_steps=num_steps)
    assert np.array_equal(chosen, explicit.predict_proba(X))
    other = explicit.set_params(num_steps=7)
    assert not np.array_equal(chosen, other.predict_proba(X))


def test_no_steps_with_weights_by_energy_are_not_off(auto, monkeypatch):
    monkeypatch.setattr(auto, "num_steps_", 0)
    monkeypatch.setattr(auto, "adapts_", True)
    weighed = auto.adapt(X)
    assert not (weighed.steps > 0).any()
    monkeypatch.setattr(auto, "adapts_", False)
    assert not np.array_equal(weighed.probabilities, auto.predict_proba(X))


def test_off_is_no_adaptation_bit_for_bit(auto):
    auto.adapts_ = False
    off = auto.predict_proba(X)
    auto.adapts_ = auto.expected_gain_.adapts
    explicit = EnergyAdapter(**{**AUTO, "num_steps": 0}).fit(X, Y, sample_domain=SOURCE)
    assert np.array_equal(off, explicit.predict_proba(X))


def test_validation_does_not_touch_the_network(auto):
    plain = EnergyAdapter(**{**AUTO, "num_steps": 3}).fit(X, Y, sample_domain=SOURCE)
    assert plain.expected_gain_ is None
    assert np.array_equal(plain.predict_proba(X), auto.set_params(num_steps=3).predict_proba(X))
    auto.set_params(num_steps="auto")


def test_the_expected_gain_is_saved(auto, tmp_path):
    auto.save(tmp_path / "est.safetensors")
    loaded = EnergyAdapter.load(tmp_path / "est.safetensors")
    assert loaded.expected_gain_ == auto.expected_gain_
    assert (loaded.num_steps_, loaded.adapts_) == (auto.num_steps_, auto.adapts_)
    assert np.array_equal(loaded.predict_proba(X), auto.predict_proba(X))


def test_with_two_sources_adaptation_is_off():
    few = np.asarray(SOURCE) < np.unique(SOURCE)[2]
    est = EnergyAdapter(**AUTO).fit(X[few], Y[few], sample_domain=SOURCE[few])
    assert est.expected_gain_ is None
    assert set(est.adapt(X).status) == {"not_adapted"}


def test_source_weights_are_learned_on_held_out_sources():
    est = EnergyAdapter(**{**QUICK, "aggregation": "learned"}).fit(X, Y, sample_domain=SOURCE)
    assert est.expected_gain_ is None, "the number of steps was given"
    assert len(est.source_weights_) == 5
    assert est.source_weights_ != BY_ENERGY
    by_energy = copy.deepcopy(est).set_params(aggregation="energy")
    assert not np.array_equal(est.predict_proba(X), by_energy.predict_proba(X))


def test_two_sources_keep_weights_by_energy():
    rows = SOURCE < 2
    est = EnergyAdapter(**{**QUICK, "aggregation": "learned"}).fit(X[rows], Y[rows], SOURCE[rows])
    assert est.source_weights_ == BY_ENERGY


def test_learned_source_weights_are_saved(tmp_path):
    est = EnergyAdapter(**{**QUICK, "aggregation": "learned", "max_iter": 5}).fit(X, Y, sample_domain=SOURCE)
    est.save(tmp_path / "est.safetensors")
    again = EnergyAdapter.load(tmp_path / "est.safetensors")
    assert again.source_weights_ == est.source_weights_
    assert np.array_equal(again.predict_proba(X), est.predict_proba(X))
