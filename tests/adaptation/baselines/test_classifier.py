"""The classifier that baselines start from: that of `none`, and its class weights."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward.adaptation.baselines.classifier import (
    class_weights,
    classifier_energy,
    ensemble_logits,
    entropy,
    mean_entropy,
)
from sourceward.functional.aggregation import log_mixture
from sourceward.nn import HEADS
from tests.adaptation.test_adapters import CLASSES, DIM, SOURCES, make_network, make_rows


@pytest.mark.parametrize("head", list(HEADS))
def test_the_mean_probability_equals_no_adaptation(head):
    network, rows = make_network(head), make_rows()
    logits = ensemble_logits(network, rows)
    none = create_adapter("none")(network, rows)
    np.testing.assert_allclose(log_mixture(logits).exp(), none.probabilities, atol=1e-6)
    np.testing.assert_allclose(logits.softmax(-1).mean(0).transpose(0, 1), none.per_source, atol=1e-6)
    assert logits.shape == (2 if head == "pooled" else 1, SOURCES, 20, CLASSES)


@pytest.mark.parametrize("head", ["prototype", "pooled", "linear"])
def test_class_weights_give_the_mean_logits(head):
    network, rows = make_network(head), make_rows()
    bias = network.head.bias.mean((0, 1)) if head == "linear" else 0.0
    logits = rows @ class_weights(network).T / DIM**0.5 + bias
    torch.testing.assert_close(logits, ensemble_logits(network, rows).mean((0, 1)), atol=1e-5, rtol=1e-5)


def test_class_weights_of_a_nonlinear_head_are_its_class_centres():
    network = make_network("concat")
    assert torch.equal(class_weights(network), network.centers.mean(0))


def test_entropy_and_energy_of_known_logits():
    logits = torch.tensor([[[[0.0, 0.0]]], [[[0.0, np.log(3.0)]]]])  # (1/2, 1/2) and (1/4, 3/4)
    vote = log_mixture(logits).exp()
    np.testing.assert_allclose(vote, [[3 / 8, 5 / 8]], rtol=1e-6)
    np.testing.assert_allclose(
        entropy(vote.log()), [-(3 / 8) * np.log(3 / 8) - 5 / 8 * np.log(5 / 8)], rtol=1e-6
    )
    np.testing.assert_allclose(classifier_energy(logits), [-(np.log(2) + np.log(4)) / 2], rtol=1e-6)


def test_entropy_of_the_mean_of_known_predictions():
    p = np.array([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4]])
    mean = p.mean(0)
    assert mean_entropy(torch.tensor(p).log()).item() == pytest.approx(-(mean * np.log(mean)).sum())
