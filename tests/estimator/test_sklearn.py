"""EnergyAdapter as a scikit-learn estimator: their checks, then the ways people combine estimators."""

import copy
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from sourceward import EnergyAdapter
from tests.helpers import QUICK, make_domains

X, Y, SOURCE = make_domains()

CHECKED = EnergyAdapter(
    num_steps=1,
    max_iter=40,
    batch_size=32,
    learning_rate=0.2,
    train={"average": 0.8, "num_steps": 1, "chains": 8},
)
"""Few, large steps: the checks fit two features a hundred times, and want 83 % of three blobs right."""

NOT_APPLICABLE: dict[str, str] = {}
"""Checks that cannot apply, by name, each with its reason. None so far."""


@parametrize_with_checks([CHECKED], expected_failed_checks=lambda est: NOT_APPLICABLE)
def test_scikit_learn(estimator, check):
    check(estimator)


def quick(**params) -> EnergyAdapter:
    return EnergyAdapter(**{**QUICK, **params})


def test_clone_copies_settings_and_nothing_learned():
    est = quick(step_size=7.0).fit(X, Y, SOURCE)
    other = clone(est)
    assert other.get_params() == est.get_params()
    assert not hasattr(other, "network_")
    assert np.array_equal(other.fit(X, Y, SOURCE).predict_proba(X), est.predict_proba(X))


def test_every_parameter_can_be_read_and_set():
    est = EnergyAdapter()
    for name, value in est.get_params().items():
        assert getattr(est, name) is value
        assert est.set_params(**{name: "something"}).get_params()[name] == "something"


def test_pipeline_passes_the_domains_through():
    pipeline = make_pipeline(StandardScaler(), quick())
    pipeline.fit(1000 * X, Y, energyadapter__sample_domain=SOURCE)
    assert pipeline[-1].sources_ == [0, 1, 2]
    assert pipeline.score(1000 * X, Y) > 0.9
    assert pipeline.set_params(energyadapter__num_steps=0).predict_proba(X).shape == (len(X), 3)


def test_grid_search_over_test_time_and_training_settings(tmp_path):
    grid = {"num_steps": np.array([0, 2]), "kl_weight": np.array([0.01])}
    search = GridSearchCV(quick(max_iter=5), grid, cv=2).fit(X, Y, sample_domain=SOURCE)
    assert search.best_params_["num_steps"] in (0, 2)
    # Numbers of a grid are NumPy's; the file takes them as plain ones.
    search.best_estimator_.save(tmp_path / "est")
    assert EnergyAdapter.load(tmp_path / "est").kl_weight == 0.01


@pytest.mark.parametrize(
    "classes",
    [["cat", "dog", "owl"], [False, True], [10, -3, 7], np.array(["b", "a", "c"], dtype=object)],
    ids=str,
)
def test_labels_of_any_kind(classes, tmp_path):
    classes = np.asarray(classes)
    rows, number, source = make_domains(classes=len(classes))
    label = classes[number]
    est = quick().fit(rows, label, sample_domain=source)
    assert est.classes_.dtype == label.dtype
    assert list(est.classes_) == sorted(classes)
    assert est.predict(rows).dtype == label.dtype
    assert est.score(rows, label) > 0.9
    est.save(tmp_path / "est")
    loaded = EnergyAdapter.load(tmp_path / "est")
    assert np.array_equal(loaded.predict(rows), est.predict(rows))
    assert loaded.classes_.dtype == label.dtype


def test_test_time_settings_hold_from_the_next_prediction_on():
    est = quick(noise_std=0.0).fit(X, Y, SOURCE)
    seen = [est.predict_proba(X)]
    for change in (
        {"num_steps": 0},
        {"num_steps": 8},
        {"step_size": 5.0},
        {"noise_std": 0.5},
        {"sampler": "nesterov"},
        {"num_draws": 2},
        {"aggregation": "confident"},
        {"sampler": "langevin_unchecked", "step_size": 500.0},
    ):
        seen.append(est.set_params(**change).predict_proba(X))
        assert not np.array_equal(seen[-1], seen[-2]), change
    assert np.array_equal(est.set_params(**quick(noise_std=0.0).get_params()).predict_proba(X), seen[0])


def test_feature_names_are_kept_and_held_to(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])
    est = quick(max_iter=5).fit(frame, pandas.Series(Y), sample_domain=pandas.Series(SOURCE))
    est.save(tmp_path / "est")
    for fitted in (est, EnergyAdapter.load(tmp_path / "est")):
        assert fitted.feature_names_in_.tolist() == list(frame.columns)
        with pytest.raises(ValueError, match="feature names should match"):
            fitted.predict(frame[frame.columns[::-1]])


def test_read_only_rows_are_predicted_without_a_warning():
    """A pandas table hands out read-only arrays; torch warns of them."""
    rows = X.astype(np.float32)
    rows.setflags(write=False)
    est = quick(max_iter=5).fit(rows, Y, sample_domain=SOURCE)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(est.predict(rows)) == len(rows)
    finally:
        torch.set_warn_always(always)


def test_plain_arrays_have_no_feature_names(tmp_path):
    est = quick(max_iter=5).fit(X.tolist(), Y.tolist(), sample_domain=SOURCE.tolist())
    est.save(tmp_path / "est")
    loaded = EnergyAdapter.load(tmp_path / "est")
    assert not hasattr(est, "feature_names_in_")
    assert not hasattr(loaded, "feature_names_in_")
    assert loaded.n_features_in_ == X.shape[1]


def test_a_deep_copy_keeps_the_bits():
    est = quick().fit(X, Y, SOURCE)
    assert np.array_equal(copy.deepcopy(est).predict_proba(X), est.predict_proba(X))


@pytest.mark.parametrize("make", [lambda: 3, lambda: np.int64(3), lambda: np.random.RandomState(3)])
def test_the_same_random_state_gives_the_same_bits(make, tmp_path):
    first, second = (quick(random_state=make(), noise_std=0.1).fit(X, Y, SOURCE) for _ in range(2))
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))
    assert not np.array_equal(
        first.predict_proba(X), quick(random_state=4, noise_std=0.1).fit(X, Y, SOURCE).predict_proba(X)
    )
    first.save(tmp_path / "est")
    assert np.array_equal(EnergyAdapter.load(tmp_path / "est").predict_proba(X), first.predict_proba(X))


def test_without_random_state_every_fit_differs():
    first, second = (quick(random_state=None).fit(X, Y, SOURCE) for _ in range(2))
    assert not np.array_equal(first.predict_proba(X), second.predict_proba(X))
    assert np.array_equal(first.predict_proba(X), first.predict_proba(X))
