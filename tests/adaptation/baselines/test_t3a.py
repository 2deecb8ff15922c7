"""T3A against the paper's algorithm as a loop over single rows."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward.adaptation.baselines.support_set import SupportSet, lowest_entropy
from tests.adaptation.test_adapters import CLASSES, make_network, make_rows


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_hand(weight, rows, keep):
    """The paper's algorithm: lists of supports by class, sorted by entropy, centroids of unit vectors."""
    supports = {c: [] for c in range(len(weight))}

    def add(x):
        p = softmax(x @ weight.T / np.sqrt(x.size))
        label, h = p.argmax(), -(p * np.log(p)).sum()
        supports[label] = sorted([*supports[label], (h, x / np.linalg.norm(x))], key=lambda s: s[0])
        if keep:
            supports[label] = supports[label][:keep]

    for w in weight:
        add(w)
    predictions = []
    for x in rows:
        add(x)
        centroids = []
        for members in supports.values():
            total = np.sum([s for _, s in members], axis=0) if members else np.zeros_like(x)
            centroids.append(total / max(np.linalg.norm(total), 1e-12))
        predictions.append(softmax(np.array([x @ c for c in centroids])))
    return np.array(predictions)


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_predictions_of_a_stream_by_hand(keep):
    network, rows = make_network(), make_rows(300)
    network.centers.copy_(network.centers[:1].expand_as(network.centers))  # all sources predict alike
    weight = network.posterior(network.centers).mean[0].double().numpy()
    adapted = create_adapter("t3a", keep=keep)(network, rows)
    np.testing.assert_allclose(adapted.probabilities, by_hand(weight, rows.double().numpy(), keep), atol=1e-5)


def test_the_filter_keeps_the_lowest_entropy_of_each_class():
    entropy = torch.tensor([0.5, 0.1, 0.4, 0.2, 0.3, 0.2])
    label = torch.tensor([0, 0, 0, 1, 1, 1])
    assert lowest_entropy(entropy, label, 2, 1).tolist() == [1, 3]  # the earlier one of a tie
    assert lowest_entropy(entropy, label, 2, 2).tolist() == [1, 2, 3, 5]
    assert lowest_entropy(entropy, label, 3, 9).tolist() == [0, 1, 2, 3, 4, 5]


def test_the_support_set_is_bounded():
    network = make_network()
    supports = SupportSet(network, keep=2)
    for _ in range(10):
        supports.add(make_rows(50), torch.randn(50, CLASSES).log_softmax(-1))
    assert torch.bincount(supports.label, minlength=CLASSES).max() == 2
