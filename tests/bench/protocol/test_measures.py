"""Numbers of an answer against independent counts."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from sourceward.adaptation import AdaptationResult
from sourceward.bench.protocol.controls import linear_control
from sourceward.bench.protocol.measures import measure, measure_adaptation, separation


def test_counts_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    p, label = rng.dirichlet(np.ones(3), 50), rng.integers(0, 3, 50)
    numbers = measure(p, label, np.arange(3), "xyz")
    expected = confusion_matrix(label, p.argmax(1))
    assert numbers["confusion"] == expected.tolist()
    assert numbers["per_class"]["y"]["accuracy"] == pytest.approx(expected[1, 1] / expected[1].sum())


def test_a_class_unknown_to_the_model_counts_as_wrong():
    numbers = measure(np.tile([0.9, 0.1], (4, 1)), np.array([0, 0, 1, 2]), np.array([0, 2]), "xyz")
    assert numbers["accuracy"] == 0.5
    assert numbers["per_class"]["y"] == {"accuracy": 0.0, "samples": 1}


def test_a_perfect_signal_separates_right_from_wrong():
    right = np.array([True] * 6 + [False] * 4)
    perfect, useless = separation(np.arange(10, 0, -1.0), right), separation(np.ones(10), right)
    assert (perfect["auroc"], perfect["selective"]["0.6"]) == (1.0, 1.0)
    assert perfect["selective"]["1"] == 0.6
    assert useless["auroc"] == 0.5
    assert separation(np.ones(3), np.ones(3, bool))["auroc"] is None


def test_trust_is_measured_apart_from_confidence():
    """Four predictions of confidence 0.8, of which the two right ones alone are trusted."""
    rows, zeros = 4, np.zeros((4, 1))
    adapted = AdaptationResult(
        probabilities=np.tile([0.8, 0.2], (rows, 1)),
        per_source=np.tile([0.8, 0.2], (rows, 1, 1)),
        features=zeros[:, None],
        energy_before=zeros,
        energy_after=zeros,
        steps=zeros.astype(int),
        status=np.full(rows, "adapted"),
        trust=np.array([0.9, 0.9, 0.1, 0.1]),
    )
    numbers = measure_adaptation(adapted, np.array([True, True, False, False]), ["a"])
    signals = numbers["uncertainty"]
    assert (signals["trust"]["auroc"], signals["confidence"]["auroc"]) == (1.0, 0.5)
    assert numbers["trust_calibration_error"] == pytest.approx(0.1)


def test_the_linear_control_learns():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = (rng.normal(size=(60, 3)) + 4 * y[:, None]).astype(np.float32)
    p = linear_control(X[:40], y[:40], np.repeat(["a", "b"], 20))(X[40:])
    assert (p.argmax(1) == y[40:]).mean() > 0.9
