"""Each source plays the unseen domain: what is chosen, what is promised, and what a fitted estimator does."""

import copy

import numpy as np
import pytest
import torch

from sourceward import EnergyAdapter
from sourceward.functional.source_weights import BY_ENERGY, Evidence
from sourceward.settings import AdaptSettings
from sourceward.validation.leave_one_domain_out import CAP, LENGTHS, Trial, choose, expected_gain, settle
from tests.helpers import QUICK, make_domains

X, Y, SOURCE = make_domains()
AUTO = {**QUICK, "num_steps": "auto"}


def trial(name: str, *accuracies: float, rows: int = 1000) -> Trial:
    """A pretend target of which each candidate gets this share right; the first is no adaptation."""
    return Trial(
        name, np.stack([np.arange(rows) < round(rows * share) for share in accuracies]).astype(float)
    )


def test_the_longest_walk_that_the_sources_gain_by_is_taken():
    assert choose([trial("a", 0.5, 0.51, 0.6), trial("b", 0.5, 0.5, 0.6)]) == 1
    assert choose([trial("a", 0.5, 0.49, 0.51), trial("b", 0.5, 0.5, 0.5)]) == 2
    assert choose([trial("a", 0.5, 0.49, 0.5), trial("b", 0.5, 0.5, 0.49)]) == 0


def test_one_easy_win_does_not_hide_a_loss():
    assert choose([trial("a", 0.5, 0.9), trial("b", 0.5, 0.47)]) == 0
    assert choose([trial("a", 0.5, 0.9), trial("b", 0.5, 0.49)]) == 1


def test_one_win_does_not_speak_for_all():
    little, win = trial("a", 0.5, 0.502), trial("b", 0.5, 0.52)
    assert choose([little, little, win]) == 0
    assert choose([little, win, win]) == 1


def test_next_to_nothing_is_no_reason_to_move():
    assert choose([trial("a", 0.5, 0.502), trial("b", 0.5, 0.502)]) == 0


def test_a_promise_is_what_pretend_targets_gained():
    trials = [trial("a", 0.5, 0.51), trial("b", 0.6, 0.61)]
    told = expected_gain(trials, 1, AdaptSettings(num_steps=10))
    assert told.gain == pytest.approx(0.01)
    assert told.per_source == pytest.approx({"a": 0.01, "b": 0.01})
    assert told.unadapted == pytest.approx(0.55)
    assert told.low < told.gain < told.high < CAP
    assert "+1.0 points expected" in str(told)


def test_off_promises_nothing_and_says_what_on_would_cost():
    told = expected_gain([trial("a", 0.5, 0.4), trial("b", 0.5, 0.45)], 0, AdaptSettings(num_steps=0))
    assert (told.gain, told.low, told.high, told.adapts) == (0, 0, 0, False)
    assert "off" in str(told)
    assert "a -10.0, b -5.0" in str(told)


@pytest.fixture(scope="module")
def auto() -> EnergyAdapter:
    return EnergyAdapter(**AUTO).fit(X, Y, sample_domain=SOURCE)


def test_auto_chooses_among_the_lengths_and_promises(auto):
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


def test_no_steps_with_votes_by_energy_are_not_off(auto, monkeypatch):
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


def test_tuning_does_not_touch_the_network(auto):
    plain = EnergyAdapter(**{**AUTO, "num_steps": 3}).fit(X, Y, sample_domain=SOURCE)
    assert plain.expected_gain_ is None
    assert np.array_equal(plain.predict_proba(X), auto.set_params(num_steps=3).predict_proba(X))
    auto.set_params(num_steps="auto")


def test_the_promise_is_saved(auto, tmp_path):
    auto.save(tmp_path / "est.safetensors")
    loaded = EnergyAdapter.load(tmp_path / "est.safetensors")
    assert loaded.expected_gain_ == auto.expected_gain_
    assert (loaded.num_steps_, loaded.adapts_) == (auto.num_steps_, auto.adapts_)
    assert np.array_equal(loaded.predict_proba(X), auto.predict_proba(X))


def test_two_sources_cannot_promise():
    few = np.asarray(SOURCE) < np.unique(SOURCE)[2]
    est = EnergyAdapter(**AUTO).fit(X[few], Y[few], sample_domain=SOURCE[few])
    assert est.expected_gain_ is None
    assert est.num_steps_ == LENGTHS[0]


def test_votes_are_learned_from_pretend_targets():
    est = EnergyAdapter(**{**QUICK, "aggregation": "learned"}).fit(X, Y, sample_domain=SOURCE)
    assert est.expected_gain_ is None, "the number of steps was given"
    assert len(est.source_weights_) == 5
    assert est.source_weights_ != BY_ENERGY
    by_energy = copy.deepcopy(est).set_params(aggregation="energy")
    assert not np.array_equal(est.predict_proba(X), by_energy.predict_proba(X))


def test_two_sources_teach_no_votes():
    rows = SOURCE < 2
    est = EnergyAdapter(**{**QUICK, "aggregation": "learned"}).fit(X[rows], Y[rows], SOURCE[rows])
    assert est.source_weights_ == BY_ENERGY


def test_a_pretend_target_has_no_say_in_its_own_votes():
    """Each trial is judged by what the others taught, so a trial's own labels cannot help it."""

    def told(right: int) -> Evidence:
        seen = torch.zeros(2, 50, 5)
        seen[right, :, 4] = 1.0
        probability = torch.tensor([[0.1, 0.9], [0.9, 0.1]]).roll(1 - right, 0)
        return Evidence(seen, probability[:, None].expand(2, 50, 2), torch.zeros(50, dtype=torch.int64))

    nothing = np.zeros((2, 50))
    # The source that is right is also the similar one, in all trials but the last, where it is the other way.
    contrary = told(0)._replace(label=torch.ones(50, dtype=torch.int64))
    trials = [
        Trial("a", nothing, (told(0),)),
        Trial("b", nothing, (told(0),)),
        Trial("c", nothing, (contrary,)),
    ]
    settings = AdaptSettings(aggregation="learned")
    chosen, said = settle(trials, settings)
    assert chosen.source_weights is not None
    assert said.per_source["c"] == 0, "what a and b taught misleads c, and c cannot teach itself"


def test_learned_votes_survive_the_file(tmp_path):
    est = EnergyAdapter(**{**QUICK, "aggregation": "learned", "max_iter": 5}).fit(X, Y, sample_domain=SOURCE)
    est.save(tmp_path / "est.safetensors")
    again = EnergyAdapter.load(tmp_path / "est.safetensors")
    assert again.source_weights_ == est.source_weights_
    assert np.array_equal(again.predict_proba(X), est.predict_proba(X))


def test_models_of_pretend_targets_draw_from_the_seed_of_the_fit():
    X, y, domain = make_domains()
    fitted = EnergyAdapter(num_steps=1, max_iter=1, random_state=3).fit(X, y, sample_domain=domain)
    seeds = [EnergyAdapter(random_state=seed).pretender(np.unique(y))._seed for seed in (3, 4)]
    assert seeds[0] == fitted.pretender(np.unique(y))._seed
    assert seeds[0] != seeds[1]
