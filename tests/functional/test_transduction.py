"""LDA fitted to a domain, and propagation of predictions among neighbours."""

import numpy as np

from sourceward.functional.transduction import (
    NEIGHBOURS,
    PRIOR,
    SETTLED,
    SHARE,
    beside_neighbours,
    fit_domain,
    lda_probability,
)

CLASSES, DIM = 3, 5


def make_domain(rows: int = 300, seed: int = 0, wide: float = 1.0, apart: float = 3.0):
    """Blobs moved by one common vector; the last direction varies `wide` times as much as the others."""
    rng = np.random.default_rng(seed)
    center = apart * np.eye(CLASSES, DIM)
    label = np.arange(rows) % CLASSES
    noise = rng.normal(size=(rows, DIM)) * np.array([1, 1, 1, 1, wide])
    return center[label] + 2.0 + noise, label, center


def certain(label: np.ndarray) -> np.ndarray:
    return np.eye(CLASSES)[label] * (1 - 3e-6) + 1e-6


def test_certain_predictions_give_the_means_of_the_classes():
    feature, label, center = make_domain(apart=12.0)
    found = fit_domain(feature, certain(label), center)
    shift = (feature - center[label]).sum(0) / (len(feature) + PRIOR)
    for number in range(CLASSES):
        own = feature[label == number]
        expected = (own.sum(0) + PRIOR * (center[number] + shift)) / (len(own) + PRIOR)
        assert np.allclose(found.mean[number], expected, atol=1e-3)


def test_the_metric_scales_down_a_direction_in_which_the_domain_varies():
    feature, label, center = make_domain(wide=5.0)
    metric = fit_domain(feature, certain(label), center).metric
    assert metric[-1, -1] < 0.5 * metric.diagonal()[:-1].min()


def test_logits_are_those_of_the_centred_means():
    feature, _, center = make_domain(20)
    probability = np.full((20, CLASSES), 1 / CLASSES)
    found = lda_probability(feature, probability, center, np.eye(DIM))
    for row in range(20):
        directions = [c - center.mean(0) for c in center]
        logit = [SHARE * (feature[row] - center.mean(0)) @ d / np.linalg.norm(d) for d in directions]
        assert np.allclose(found[row], np.exp(logit) / np.exp(logit).sum())


def test_a_shifted_domain_is_predicted_better():
    feature, label, center = make_domain(600, seed=3)
    start = np.exp(feature @ center.T - 0.5 * (center**2).sum(1))
    start[:, 0] *= 1e4  # a classifier that prefers one class
    start /= start.sum(1, keepdims=True)
    before, after = ((p.argmax(1) == label).mean() for p in (start, fit_domain(feature, start, center)[2]))
    assert after > before + 0.1


def test_a_sample_takes_over_from_its_neighbours():
    others = np.tile([0.0, 1.0], (2 * NEIGHBOURS, 1))
    others[NEIGHBOURS:] = [1.0, 0.0]
    similarity = np.repeat([0.9, 0.1], NEIGHBOURS)[None]
    share = 0.5 * len(others) / (len(others) + SETTLED)
    found = beside_neighbours(np.array([[0.5, 0.5]]), similarity, others)
    assert np.allclose(found, [[0.5 * (1 - share), 0.5 * (1 - share) + share]])


def test_too_few_or_opposite_neighbours_change_nothing():
    own = np.array([[0.4, 0.6]])
    assert np.array_equal(beside_neighbours(own, np.ones((1, 3)), np.ones((3, 2)) / 2), own)
    assert np.array_equal(beside_neighbours(own, -np.ones((1, 40)), np.ones((40, 2)) / 2), own)
