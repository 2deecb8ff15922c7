"""A stream of samples: what it gains, what its state holds, when it falls back, and its file."""

import numpy as np
import pytest

from sourceward import EnergyAdapter, InputError
from sourceward._util.storage import load_tensors, save_tensors, tensor_hash
from sourceward.adaptation.base import select_rows
from sourceward.adaptation.stream import MEMORY
from tests.helpers import QUICK

CLASSES, DIM = 4, 8


def make_shifted(rows: int = 240, shift: float = 0.0, seed: int = 0):
    """Class blobs, each moved by its own vector times `shift`: a domain that class means can follow."""
    rng = np.random.default_rng(7)
    blobs, moves = 2.5 * rng.normal(size=(CLASSES, DIM)), rng.normal(size=(CLASSES, DIM))
    label = np.random.default_rng(seed).integers(CLASSES, size=rows)
    noise = np.random.default_rng(seed + 1).normal(size=(rows, DIM))
    return blobs[label] + shift * moves[label] + noise, label


@pytest.fixture(scope="module")
def est() -> EnergyAdapter:
    parts = [make_shifted(seed=10 * seed, shift=0.2 * seed) for seed in range(3)]
    X, y = np.concatenate([x for x, _ in parts]), np.concatenate([label for _, label in parts])
    return EnergyAdapter(**{**QUICK, "num_steps": "auto"}).fit(X, y, np.repeat([0, 1, 2], len(parts[0][0])))


def accuracy(predicted: np.ndarray, label: np.ndarray) -> float:
    return float((predicted == label).mean())


def test_class_means_follow_a_shifted_domain(est):
    X, y = make_shifted(600, shift=4.0, seed=99)
    stream = est.stream()
    with_state, without = accuracy(stream.predict(X), y), accuracy(est.predict(X), y)
    assert 1 - with_state < 0.5 * (1 - without)
    assert stream.seen == 600
    moved = stream.inspect()
    assert min(moved["samples"]) > 10
    assert max(moved["cosine_to_sources"]) < 0.999


def test_one_call_or_many_give_the_same_bits(est):
    X, _ = make_shifted(100, shift=1.0, seed=5)
    whole, parts = est.stream(), est.stream()
    at_once = whole.predict_proba(X)
    piecewise = np.concatenate([parts.predict_proba(X[i : i + 7]) for i in range(0, 100, 7)])
    assert np.array_equal(at_once, piecewise)


def test_a_batch_does_not_depend_on_its_order(est):
    X, y = make_shifted(200, shift=1.0, seed=5)
    order = np.argsort(y, kind="stable")  # sorted by class, which guards a stream
    one, other = est.stream().adapt(X, together=True), est.stream().adapt(X[order], together=True)
    assert np.allclose(one.probabilities[order], other.probabilities, atol=1e-3)


def test_a_stream_of_one_class_is_answered_without_state(est):
    X, y = make_shifted(900, shift=2.0, seed=3)
    rows = X[y == 1]
    stream = est.stream()
    result = stream.adapt(rows)
    assert stream.guarded > len(rows) / 2
    assert np.array_equal(result.probabilities[-50:], est.adapt(rows).probabilities[-50:])


def test_a_batch_of_one_class_is_answered_without_state_and_not_remembered(est):
    X, _ = make_shifted(400, shift=2.0, seed=3)
    rows, stream = X[est.predict(X) == 1], est.stream()
    result = stream.adapt(rows, together=True)
    assert stream.guarded == len(rows)
    assert np.array_equal(result.probabilities, est.adapt(rows).probabilities)
    assert sum(stream.inspect()["samples"]) == 0


def test_a_batch_without_samples_changes_no_state(est):
    X, _ = make_shifted(100, seed=3)
    stream = est.stream()
    stream.adapt(X, together=True)
    before = stream.inspect()
    none = select_rows(est.adapt(X), np.arange(0))
    assert len(stream.update(none, together=True)) == 0
    assert stream.inspect() == before


def test_a_full_memory_drops_the_oldest_of_its_most_frequent_class(est, monkeypatch):
    monkeypatch.setattr("sourceward.adaptation.stream.MEMORY", 40)
    X, y = make_shifted(400, seed=12)
    counts = [20, 80, 50, 30]
    rows = np.concatenate([np.flatnonzero(y == number)[:count] for number, count in enumerate(counts)])
    stream = est.stream()
    stream.adapt(X[rows], together=True)
    samples = stream.inspect()["samples"]
    assert sum(samples) == 40
    assert max(samples) - min(samples) <= 2


def test_a_stream_is_shown_in_one_line(est):
    assert repr(est.stream()) == "AdaptationStream(seen=0, guarded=0)"


def test_the_estimator_keeps_no_state(est):
    X, _ = make_shifted(50, seed=4)
    before, weights = est.predict_proba(X), tensor_hash(est.network_.state_dict())
    est.stream().predict(X)
    assert np.array_equal(est.predict_proba(X), before)
    assert tensor_hash(est.network_.state_dict()) == weights


def test_the_state_goes_on_from_its_file(est, tmp_path):
    X, _ = make_shifted(120, shift=1.0, seed=6)
    whole, first = est.stream(), est.stream()
    expected = whole.predict_proba(X)[60:]
    first.predict(X[:60])
    first.save(tmp_path / "state.safetensors")
    second = est.stream().load(tmp_path / "state.safetensors")
    assert second.seen == 60
    assert np.array_equal(second.predict_proba(X[60:]), expected)
    second.reset()
    assert second.seen == 0
    assert np.array_equal(second.predict_proba(X)[60:], expected)


def test_the_state_of_another_model_or_version_is_refused(est, tmp_path, monkeypatch):
    X, y = make_shifted(60, seed=8)
    other = EnergyAdapter(**{**QUICK, "num_steps": 1, "max_iter": 2}).fit(X, y)
    other.stream().save(tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="another model"):
        est.stream().load(tmp_path / "other.safetensors")
    monkeypatch.setattr("sourceward.adaptation.stream.MEMORY", 10)
    est.stream().save(tmp_path / "small.safetensors")
    monkeypatch.undo()
    with pytest.raises(InputError, match="another version"):
        est.stream().load(tmp_path / "small.safetensors")
    est.stream().save(tmp_path / "state.safetensors")
    state, meta = load_tensors(tmp_path / "state.safetensors")
    for wrong in ({"held": MEMORY + 1}, {"new": -1}, {"seen": "many"}):
        save_tensors(tmp_path / "wrong.safetensors", state, meta | wrong)
        with pytest.raises(InputError, match="another version"):
            est.stream().load(tmp_path / "wrong.safetensors")
    save_tensors(tmp_path / "x.safetensors", {"a": est.network_.scale}, {"kind": "x"})
    with pytest.raises(InputError, match="state of a stream"):
        est.stream().load(tmp_path / "x.safetensors")


def test_validation_says_what_each_permitted_adapter_gains(est, tmp_path):
    gains = est.stream_
    assert set(gains.stream.per_source) == set(gains.batch.per_source) == {"0", "1", "2"}
    assert gains.stream.low < gains.stream.gain < gains.stream.high
    est.save(tmp_path / "est.safetensors")
    assert EnergyAdapter.load(tmp_path / "est.safetensors").stream_ == gains
