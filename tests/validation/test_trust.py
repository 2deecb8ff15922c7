"""Trust: fitted on held-out sources, it states how often labels are right, and orders them."""

import numpy as np
import pytest

from sourceward import EnergyAdapter, InputError
from sourceward.functional.calibration import tempered, trust
from sourceward.validation.trust import Judged, fit_trust
from tests.helpers import QUICK, make_domains

X, Y, SOURCE = make_domains()


def overconfident(rows: int = 3000, seed: int = 0) -> Judged:
    """Predictions of three classes that are right as their probabilities say at temperature 2."""
    rng = np.random.default_rng(seed)
    probability = rng.dirichlet(np.ones(3), rows)
    sampled = (tempered(probability, 2.0).cumsum(1) > rng.random((rows, 1))).argmax(1)
    return Judged(probability, sampled)


def test_the_temperature_makes_trust_calibrated_where_confidence_is_not():
    found = fit_trust([overconfident(seed=seed) for seed in range(3)])
    assert found.temperature == pytest.approx(2, rel=0.1)
    confidence, trusted = found.calibration_error
    assert confidence > 0.1
    assert trusted < 0.03


def test_the_more_it_abstains_the_fewer_answers_are_wrong():
    error = fit_trust([overconfident(seed=seed) for seed in range(3)]).error
    assert list(error.values()) == sorted(error.values(), reverse=True)
    assert error["0.5"] < 0.9 * error["1"]


def test_the_threshold_leaves_the_share_that_was_asked_for():
    judged = [overconfident(seed=seed) for seed in range(3)]
    found = fit_trust(judged)
    values = np.concatenate([trust(one.probability, found.temperature) for one in judged])
    assert (values >= found.threshold(0.8)).mean() == pytest.approx(0.8, abs=0.02)
    assert found.threshold(1.0) == 0
    with pytest.raises(InputError, match="coverage"):
        found.threshold(1.2)


def test_an_estimator_states_trust_and_saves_it(tmp_path):
    est = EnergyAdapter(**{**QUICK, "num_steps": "auto", "max_iter": 3}).fit(X, Y, sample_domain=SOURCE)
    assert est.trust_ is not None
    result = est.adapt(X)
    assert ((result.trust > 0) & (result.trust < 1)).all()
    assert not np.allclose(result.trust, result.probabilities.max(1))
    est.save(tmp_path / "est.safetensors")
    loaded = EnergyAdapter.load(tmp_path / "est.safetensors")
    assert loaded.trust_ == est.trust_
    assert np.array_equal(loaded.adapt(X).trust, result.trust)


def test_without_validation_trust_is_the_probability_of_the_label():
    result = (
        EnergyAdapter(**{**QUICK, "num_steps": 2, "max_iter": 3}).fit(X, Y, sample_domain=SOURCE).adapt(X)
    )
    assert np.array_equal(result.trust, result.probabilities.max(1))
    assert set(np.unique(result.agreement.round(3))) <= {0.0, 0.333, 0.667, 1.0}
