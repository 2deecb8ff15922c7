"""SHOT-IM: mean entropy less the entropy of the mean; the classifier stays."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward.adaptation.baselines.shot import information_maximisation
from tests.adaptation.test_adapters import make_image_network, make_network, make_rows


def test_loss_of_known_answers():
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.5, 0.25, 0.25]])
    mean = p.mean(0)
    expected = -(p * np.log(p)).sum(1).mean() + (mean * np.log(mean)).sum()
    assert information_maximisation(torch.tensor(p).log()).item() == pytest.approx(expected, abs=1e-12)


def test_collapse_to_one_class_gains_nothing():
    sure = torch.tensor([[1.0, 1e-20]]).log()
    assert information_maximisation(sure.repeat(5, 1)).item() == pytest.approx(0.0, abs=1e-6)
    both = torch.cat([sure, sure.flip(1)])
    assert information_maximisation(both).item() == pytest.approx(-np.log(2), abs=1e-6)


def test_answers_become_sure_and_stay_diverse():
    network, rows = make_network(), make_rows(64)
    before = create_adapter("none")(network, rows).probabilities
    after = create_adapter("shot_im_features", rate=0.05, steps=30)(network, rows).probabilities

    def loss(p):
        return information_maximisation(torch.from_numpy(p).log()).item()

    assert loss(after) < loss(before) - 0.05
    assert len(set(after.argmax(1))) > 1


def test_the_backbone_learns_and_nothing_else():
    student = create_adapter("shot_im").student(make_image_network())
    learned = {n for n, p in student.network.named_parameters() if p.requires_grad}
    assert learned == {n for n, _ in student.network.named_parameters() if n.startswith("backbone.")}
