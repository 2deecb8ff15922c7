"""EnergyAdapter: what it learns, what it returns, what it refuses."""

import copy
import time

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from sourceward import EnergyAdapter, InputError
from sourceward.functional import AGGREGATIONS
from sourceward.functional.aggregation import BY_ENERGY
from sourceward.nn import HEADS
from tests.helpers import QUICK, make_domains

X, Y, SOURCE = make_domains()
NAMES, PLACES = np.array(["ant", "bee", "cow"]), np.array(["lab", "sea", "zoo"])


def quick(**params) -> EnergyAdapter:
    return EnergyAdapter(**{**QUICK, **params})


@pytest.fixture(scope="module")
def est() -> EnergyAdapter:
    return quick().fit(X, NAMES[Y], sample_domain=PLACES[SOURCE])


@pytest.mark.parametrize("sources", [1, 2, 5])
@pytest.mark.parametrize("head", list(HEADS))
def test_every_head_learns_from_any_number_of_sources(head, sources):
    rows, label, source = make_domains(sources=sources)
    est = quick(head=head).fit(rows, label, sample_domain=source)
    adapted = est.adapt(rows, trajectory=True)
    n = len(rows)
    assert adapted.features.shape == (n, sources, 6)
    assert adapted.per_source.shape == (n, sources, 3)
    assert adapted.trajectory.shape == (n, 5, sources, 6)
    assert est.score(rows, label) > 0.9
    assert est.set_params(num_steps=0).score(rows, label) > 0.9
    assert (adapted.energy_after <= adapted.energy_before).all()
    assert (adapted.energy_after < adapted.energy_before).mean() > 0.9


def test_one_source_by_default():
    assert quick(max_iter=3).fit(X, Y).sources_ == ["source"]


def test_a_single_source_takes_negatives_from_shifted_samples():
    rows, label, _ = make_domains(sources=1)
    noise, shifted = quick(), quick()
    noise.fit(rows, label)
    shifted.fit(rows, label, X_shifted=rows + 3, y_shifted=label)
    a, b = noise.network_.state_dict(), shifted.network_.state_dict()
    assert not torch.equal(a["energy.matrices.0"], b["energy.matrices.0"])
    assert torch.equal(a["centers"], b["centers"]), "shifted samples belong to no source"
    # The energy is higher outside.
    inside, outside = shifted.adapt(rows).energy_before, shifted.adapt(rows + 3).energy_before
    assert outside.mean() > inside.mean()


def test_several_sources_can_practise_on_shifted_samples_too():
    plain = quick().fit(X, Y, SOURCE)
    shifted = quick().fit(X, Y, SOURCE, X_shifted=X[:7] + 3, y_shifted=Y[:7])
    assert not np.array_equal(plain.predict_proba(X), shifted.predict_proba(X))


def test_names_are_sorted_and_kept(est):
    assert est.sources_ == ["lab", "sea", "zoo"]
    assert est.classes_.tolist() == ["ant", "bee", "cow"]
    assert set(est.predict(X)) <= {"ant", "bee", "cow"}


def test_only_the_named_sources_are_aggregated(est):
    est = copy.deepcopy(est).set_params(aggregation="mean")
    everyone = est.adapt(X)
    for number, name in enumerate(est.sources_):
        alone = est.adapt(X, sources=[name])
        np.testing.assert_allclose(alone.probabilities, everyone.per_source[:, number], atol=1e-6)
        assert np.array_equal(alone.per_source, everyone.per_source)
    both = est.adapt(X, sources=["zoo", "lab"]).probabilities
    np.testing.assert_allclose(both, everyone.per_source[:, [0, 2]].mean(1), atol=1e-6)


@pytest.mark.parametrize("aggregation", list(AGGREGATIONS))
def test_every_aggregation_lies_between_the_sources(est, aggregation):
    est = copy.deepcopy(est).set_params(aggregation=aggregation)
    est.source_weights_ = BY_ENERGY
    adapted = est.adapt(X)
    np.testing.assert_allclose(adapted.probabilities.sum(1), 1, atol=1e-5)
    assert (adapted.probabilities <= adapted.per_source.max(1) + 1e-6).all()
    assert (adapted.probabilities >= adapted.per_source.min(1) - 1e-6).all()


def test_a_test_sample_s_domain_is_never_used(est):
    domain = np.full(len(X), 7)
    assert np.array_equal(est.predict_proba(X, sample_domain=domain), est.predict_proba(X))
    assert np.array_equal(est.predict(X, sample_domain=domain), est.predict(X))


def test_a_missing_class_is_refused_or_allowed():
    label, source = NAMES[Y], PLACES[SOURCE]
    keep = ~((label == "bee") & (source == "sea"))
    data = X[keep], label[keep], source[keep]
    with pytest.raises(InputError, match=r"Source 'sea' has no samples of class 'bee'.*allow_missing=True"):
        quick().fit(*data)
    est = quick().fit(*data, allow_missing=True)
    assert est.score(X, label) > 0.9
    sea, others = est.network_.centers[1, 1], est.network_.centers[[0, 2], 1].mean(0)
    torch.testing.assert_close(sea, others)


# What is refused, and how: each one sentence that says what was expected, what came and what to do.

rows_with = {"NaN": np.nan, "infinity": np.inf, "more than float32 holds": 1e39}


@pytest.mark.parametrize("value", rows_with.values(), ids=rows_with)
def test_values_that_are_not_finite(est, value):
    bad = X.copy()
    bad[[5, 9], 2] = value
    says = "Expected finite features, but got NaN or infinity in 2 of 120 rows, the first at row 5. Drop or"
    with pytest.raises(InputError, match=says):
        quick().fit(bad, Y, SOURCE)
    with pytest.raises(InputError, match=says):
        est.predict(bad)
    with pytest.raises(InputError, match=says):
        quick().fit(X, Y, SOURCE, X_shifted=bad, y_shifted=Y)


def test_a_row_without_a_finite_answer():
    est = quick(head="linear").fit(X, Y, SOURCE)
    est.network_.head.weight.fill_(1e35)
    with pytest.raises(InputError, match=r"Row 3 is so far from the sources .* Check its units"):
        est.predict(np.vstack([X[:3], np.full((1, 6), 1e30)]))


BAD_FIT = {
    "one class": (X, np.zeros(120), {}, "Expected 2 or more classes in `y`, but got 1 class"),
    "no rows": (X[:0], Y[:0], {}, r"0 sample\(s\)"),
    "no columns": (X[:, :0], Y, {}, r"0 feature\(s\)"),
    "one row": (X[:1], Y[:1], {}, "1 class"),
    "rows and labels differ": (X, Y[:-1], {}, "inconsistent numbers of samples"),
    "one dimension": (X[0], Y, {}, "Expected 2D array"),
    "NaN label": (X, np.where(Y == 1, np.nan, Y), {}, "y contains NaN"),
    "numbers for labels": (X, X[:, 0], {}, "Unknown label type: continuous"),
    "identical rows": (np.ones((120, 6)), Y, {}, "All rows of X are equal"),
    "tiny": (1e-20 * X, Y, {}, "the range of X is 2e-19. Rescale X"),
    "huge": (1e20 * X, Y, {}, "the range of X is 2e.21. Rescale X"),
    "domains of wrong length": (X, Y, {"sample_domain": SOURCE[:-1]}, r"but got shape \(119,\)"),
    "domains in a table": (X, Y, {"sample_domain": SOURCE[:, None]}, r"but got shape \(120, 1\)"),
    "one sample in a source": (X, Y, {"sample_domain": [9] + [0] * 119}, "Source 9 has one sample"),
    "targets only": (X, Y, {"sample_domain": -1 - SOURCE}, "every entry is negative"),
    "NaN domain": (X, Y, {"sample_domain": [np.nan] * 120}, "Expected names or integers"),
    "no domain": (X, Y, {"sample_domain": [None, *SOURCE[1:]]}, "Expected names or integers"),
    "half a domain": (X, Y, {"sample_domain": SOURCE + 0.5}, "Expected names or integers"),
    "X_shifted alone": (X, Y, {"X_shifted": X}, "Expected `X_shifted` and `y_shifted` together"),
    "y_shifted alone": (X, Y, {"y_shifted": Y}, "Expected `X_shifted` and `y_shifted` together"),
    "y_shifted unknown": (X, Y, {"X_shifted": X, "y_shifted": Y + 2}, r"`y` does not have: \[3, 4\]"),
    "X_shifted narrow": (X, Y, {"X_shifted": X[:, :3], "y_shifted": Y}, "3 features"),
}


@pytest.mark.parametrize(("rows", "label", "options", "says"), BAD_FIT.values(), ids=BAD_FIT)
def test_bad_data(rows, label, options, says):
    with pytest.raises(InputError, match=says):
        quick().fit(rows, label, **options)


BAD_SETTINGS = {
    "num_steps": (-3, "Expected `num_steps` to be 0 or more, but got -3. Use 0 to predict without"),
    "num_draws": (-1, "Expected `num_draws` to be 0 or more, but got -1"),
    "step_size": (-1.0, "Expected `step_size` to be 0 or more, but got -1.0"),
    "noise_std": (float("nan"), "Expected `noise_std` to be 0 or more, but got nan"),
    "sampler": ("langvin", "Unknown sampler 'langvin'. Did you mean 'langevin'"),
    "aggregation": ("cosin", "Unknown aggregation 'cosin'. Did you mean 'cosine'"),
    "head": ("prototyp", "Unknown head 'prototyp'. Did you mean 'prototype'"),
    "max_iter": (0, "Expected `max_iter` to be 1 or more, but got 0"),
    "batch_size": (0, "Expected `batch_size` to be 1 or more, but got 0"),
    "train": ({"num_steps": 0}, "Expected training `num_steps` to be 1 or more, but got 0"),
    "device": ("gpu", "Expected `device` to be 'cpu', 'cuda' or 'auto', but got 'gpu'"),
    "random_state": ("seven", "Expected `random_state` to be an integer, but 'seven' cannot be used"),
}


@pytest.mark.parametrize(("name", "value", "says"), [(k, *v) for k, v in BAD_SETTINGS.items()])
def test_bad_settings_are_refused_before_the_work(name, value, says, monkeypatch):
    monkeypatch.setattr("sourceward.training.trainer.Trainer.step", lambda *_: pytest.fail("training began"))
    with pytest.raises(InputError, match=says):
        quick(**{name: value}).fit(X, Y, SOURCE)


@pytest.mark.parametrize("name", ["num_steps", "num_draws", "step_size", "sampler", "aggregation"])
def test_bad_settings_of_a_fitted_estimator_are_refused(est, name):
    value, says = BAD_SETTINGS[name]
    good = est.get_params()[name]
    with pytest.raises(InputError, match=says):
        est.set_params(**{name: value}).predict(X)
    est.set_params(**{name: good}).predict(X)


def test_cuda_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        InputError, match=r"'cuda:0' was requested, but no CUDA device is available. Use 'cpu'"
    ):
        quick(device="cuda:0").fit(X, Y)
    assert quick(device="auto", max_iter=2).fit(X, Y).network_.scale.device.type == "cpu"


def test_bad_input_at_prediction(est):
    with pytest.raises(InputError, match="X has 5 features, but EnergyAdapter is expecting 6"):
        est.predict(X[:, :5])
    with pytest.raises(InputError, match=r"0 sample\(s\)"):
        est.predict(X[:0])
    with pytest.raises(InputError, match=r"Unknown source 'zo'. Did you mean 'zoo'"):
        est.adapt(X, sources=["zo"])
    with pytest.raises(InputError, match="Expected one or more `sources`, but got none"):
        est.adapt(X, sources=[])


def test_a_checkpoint_needs_a_seed(tmp_path):
    with pytest.raises(InputError, match="Expected a `random_state` beside `checkpoint`"):
        quick(random_state=None, checkpoint=tmp_path / "checkpoint").fit(X, Y)


def test_a_fit_that_fails_leaves_nothing_half_fitted():
    est = quick(max_iter=2)
    with pytest.raises(NotFittedError):
        est.predict(X)
    est.fit(X, Y, SOURCE)
    with pytest.raises(InputError):
        est.fit(X[:, :2], np.where(np.arange(120) == 0, "odd", "even"), SOURCE)
    with pytest.raises(NotFittedError):
        est.predict(X)
    with pytest.raises(NotFittedError):
        est.save("nowhere")


@pytest.mark.parametrize("average", [0.0, 0.98])
@pytest.mark.parametrize("head", list(HEADS))
def test_a_saved_estimator_predicts_with_the_same_bits(tmp_path, head, average):
    label, source = NAMES[Y], PLACES[SOURCE]
    est = quick(head=head, train={**QUICK["train"], "average": average}, noise_std=0.1, num_draws=2).fit(
        X, label, source
    )
    est.save(tmp_path / "sub" / "est.safetensors")
    loaded = EnergyAdapter.load(tmp_path / "sub" / "est.safetensors")
    assert loaded.get_params() == est.get_params()
    assert (loaded.sources_, loaded.n_iter_) == (est.sources_, est.n_iter_)
    assert np.array_equal(loaded.classes_, est.classes_)
    ours, theirs = est.adapt(X), loaded.adapt(X)
    for name in ("probabilities", "features", "energy_before", "energy_after", "steps", "status"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert np.array_equal(loaded.fit(X, label, source).predict_proba(X), est.predict_proba(X))


def test_a_progress_bar_when_asked_for(capsys):
    quick(max_iter=20, verbose=True).fit(X, Y)
    assert "fitting" in capsys.readouterr().err
    quick(max_iter=20).fit(X, Y)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_four_thousand_rows_in_five_seconds():
    rows, label, source = make_domains(rows=100, dim=256, classes=7)
    est = EnergyAdapter(num_steps=20, max_iter=2, train={"num_steps": 1}).fit(rows, label, source)
    many = np.random.default_rng(0).normal(size=(4000, 256))
    seconds = []
    while len(seconds) < 3 and min(seconds, default=9) > 5:  # the best of three
        start = time.process_time()  # of one thread: waiting for a busy machine does not count
        est.predict(many)
        seconds.append(time.process_time() - start)
    assert min(seconds) <= 5


def test_wide_features_are_projected_onto_principal_components(tmp_path):
    wide = X @ np.random.default_rng(0).normal(size=(6, 40))
    est = quick(train={**QUICK["train"], "components": 4}).fit(wide, Y, SOURCE)
    assert (est.network_.dim, est.n_features_in_) == (4, 40)
    est.save(tmp_path / "est.safetensors")
    loaded = EnergyAdapter.load(tmp_path / "est.safetensors")
    assert np.array_equal(loaded.predict_proba(wide), est.predict_proba(wide))


def test_a_head_that_is_set_after_fitting_does_not_spoil_the_file(tmp_path):
    X, y, domain = make_domains()
    est = EnergyAdapter(**QUICK).fit(X, y, sample_domain=domain).set_params(head="linear")
    est.save(tmp_path / "est.safetensors")
    loaded = EnergyAdapter.load(tmp_path / "est.safetensors")
    assert np.array_equal(loaded.predict_proba(X), est.predict_proba(X))


def test_a_checkpoint_of_whitened_features_does_not_serve_others(tmp_path):
    file = tmp_path / "fit.safetensors"
    quick(checkpoint=file, whiten=True).fit(X, Y, SOURCE)
    with pytest.raises(InputError):
        quick(checkpoint=file, whiten=False).fit(X, Y, SOURCE)
