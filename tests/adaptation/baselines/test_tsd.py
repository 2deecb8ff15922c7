"""TSD: self-distillation by hand, and training with it."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward.adaptation.baselines.tsd import self_distillation
from tests.adaptation.test_adapters import make_network, make_rows


def test_loss_of_a_small_case():
    """Three rows in the plane, two prototypes on the axes; the two predictions of the third row disagree."""
    feature = torch.tensor([[2.0, 0.0], [3.0, 4.0], [0.0, 5.0]], requires_grad=True)
    p = np.array([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1]])
    loss = self_distillation(feature, torch.eye(2), torch.tensor(p, dtype=torch.float32).log())
    cosine = np.array([[1.0, 0.0], [0.6, 0.8]])
    q = np.exp(cosine) / np.exp(cosine).sum(1, keepdims=True)
    expected = (p[:2] * np.log(p[:2] / q)).sum(1).mean()
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    (slope,) = torch.autograd.grad(loss, feature)
    assert slope[2].abs().sum() == 0  # filtered
    assert slope[:2].abs().sum() > 0


def test_the_classifiers_prediction_takes_no_gradient():
    prediction = torch.randn(4, 3, requires_grad=True)
    loss = self_distillation(
        torch.randn(4, 5, requires_grad=True), torch.eye(3, 5), prediction.log_softmax(-1)
    )
    loss.backward()
    assert prediction.grad is None


def test_the_loss_is_zero_where_all_rows_disagree():
    prediction = torch.tensor([[0.1, 0.9]]).log()
    assert self_distillation(torch.tensor([[1.0, 0.0]]), torch.eye(2), prediction).item() == 0


def test_training_lowers_the_loss():
    network, rows = make_network(), make_rows(64)
    adapter = create_adapter("tsd_features", learning_rate=0.01)
    model = adapter.trainable(network)
    loss = adapter.make_loss(model)
    optimizer = torch.optim.Adam(model.parameters, lr=0.01)
    losses = []
    for _ in range(20):
        feature = model.encode(rows)
        losses.append(loss(rows, feature, model.logits(feature)))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
