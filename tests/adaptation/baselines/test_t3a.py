"""T3A: supports, their filter by entropy, and the classifier they make, against a loop over single rows."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward.adaptation.baselines.supports import Supports, surest
from tests.adaptation.test_adapters import CLASSES, make_network, make_rows


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_hand(weight, rows, keep):
    """Algorithm of the paper: lists of supports by class, sorted by entropy, centroids of unit vectors."""
    supports = {c: [] for c in range(len(weight))}

    def add(x):
        p = softmax(x @ weight.T / np.sqrt(x.size))
        label, h = p.argmax(), -(p * np.log(p)).sum()
        supports[label] = sorted([*supports[label], (h, x / np.linalg.norm(x))], key=lambda s: s[0])
        if keep:
            supports[label] = supports[label][:keep]

    for w in weight:
        add(w)
    answers = []
    for x in rows:
        add(x)
        centroids = []
        for members in supports.values():
            total = np.sum([s for _, s in members], axis=0) if members else np.zeros_like(x)
            centroids.append(total / max(np.linalg.norm(total), 1e-12))
        answers.append(softmax(np.array([x @ c for c in centroids])))
    return np.array(answers)


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_one_sample_after_the_other(keep):
    network, rows = make_network(), make_rows(40)
    network.centers.copy_(network.centers[:1].expand_as(network.centers))  # all sources vote alike
    weight = network.posterior(network.centers).mean[0].double().numpy()
    adapted = create_adapter("t3a", keep=keep)(network, rows)
    np.testing.assert_allclose(adapted.probabilities, by_hand(weight, rows.double().numpy(), keep), atol=1e-5)


def test_the_filter_keeps_the_surest_of_each_class():
    entropy = torch.tensor([0.5, 0.1, 0.4, 0.2, 0.3, 0.2])
    label = torch.tensor([0, 0, 0, 1, 1, 1])
    assert surest(entropy, label, 2, 1).tolist() == [1, 3]  # of two alike the earlier
    assert surest(entropy, label, 2, 2).tolist() == [1, 2, 3, 5]
    assert surest(entropy, label, 3, 9).tolist() == [0, 1, 2, 3, 4, 5]


def test_memory_is_bounded():
    network = make_network()
    supports = Supports(network, keep=2)
    for _ in range(10):
        answer = torch.randn(50, CLASSES).log_softmax(-1)
        supports.add(make_rows(50), answer)
    assert torch.bincount(supports.label, minlength=CLASSES).max() == 2


def test_answers_leave_the_device_together_and_in_order():
    """Gathering rows changes neither their order nor their bits."""
    network, rows = make_network(), make_rows(600)
    alone = [part.vote for _, part in create_adapter("t3a").respond(network, rows)]
    np.testing.assert_array_equal(
        create_adapter("t3a")(network, rows).probabilities, torch.cat(alone).numpy()
    )
