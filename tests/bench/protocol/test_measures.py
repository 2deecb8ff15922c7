"""Numbers of an answer against independent counts."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from sourceward.bench.protocol.controls import linear_control
from sourceward.bench.protocol.measures import measure, separation


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


def test_the_linear_control_learns():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = (rng.normal(size=(60, 3)) + 4 * y[:, None]).astype(np.float32)
    p = linear_control(X[:40], y[:40], np.repeat(["a", "b"], 20))(X[40:])
    assert (p.argmax(1) == y[40:]).mean() > 0.9
