"""SHOT-IM: the loss in NumPy, and which parameters are trained."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward.adaptation.baselines.shot import information_maximisation
from tests.adaptation.test_adapters import make_image_network, make_network, make_rows


def test_loss_of_known_predictions():
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.5, 0.25, 0.25]])
    mean = p.mean(0)
    expected = -(p * np.log(p)).sum(1).mean() + (mean * np.log(mean)).sum()
    assert information_maximisation(torch.tensor(p).log()).item() == pytest.approx(expected, abs=1e-12)


def test_collapse_to_one_class_has_zero_loss():
    certain = torch.tensor([[1.0, 1e-20]]).log()
    assert information_maximisation(certain.repeat(5, 1)).item() == pytest.approx(0.0, abs=1e-6)
    diverse = torch.cat([certain, certain.flip(1)])
    assert information_maximisation(diverse).item() == pytest.approx(-np.log(2), abs=1e-6)


def test_predictions_become_certain_and_stay_diverse():
    network, rows = make_network(), make_rows(64)
    before = create_adapter("none")(network, rows).probabilities
    after = create_adapter("shot_im_features", learning_rate=0.05, num_updates=30)(
        network, rows
    ).probabilities

    def loss(p):
        return information_maximisation(torch.from_numpy(p).log()).item()

    assert loss(after) < loss(before) - 0.05
    assert len(set(after.argmax(1))) > 1


def test_only_the_backbone_is_trained():
    model = create_adapter("shot_im").trainable(make_image_network())
    trained = {n for n, p in model.network.named_parameters() if p.requires_grad}
    assert trained == {n for n, _ in model.network.named_parameters() if n.startswith("backbone.")}
