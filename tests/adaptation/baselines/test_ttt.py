"""Test-time training: the rotation task moves the backbone alone, and only for its sample."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from sourceward import create_adapter
from sourceward.adaptation import Unsuitable
from sourceward.adaptation.baselines import ttt as module
from sourceward.functional.rotate import rotate
from sourceward.nn.backbones.backbone import ROTATION
from tests.adaptation.test_adapters import make_image_network, make_images
from tests.helpers import make_generator


def test_turns():
    images = make_images(4)
    turned = rotate(images, torch.tensor([0, 1, 2, 3]))
    assert torch.equal(turned[0], images[0])
    assert torch.equal(turned[1], images[1].transpose(1, 2).flip(1))
    assert torch.equal(turned[2], images[2].flip(1, 2))
    assert torch.equal(rotate(turned[3:], torch.tensor([1])), images[3:])


def test_one_step_by_hand(monkeypatch):
    """Without crops and flips: theta <- theta - rate d CE(turns) / d theta, then the sample's answer."""
    monkeypatch.setattr(module, "crop_and_flip", lambda images, boxes, flips, size: images)
    network, images = make_image_network(), make_images(1)
    adapter = create_adapter("ttt", copies=8, rate=0.05)
    adapted = adapter(network, images)

    turns = None

    def remember(images, drawn):
        nonlocal turns
        turns = drawn
        return rotate(images, drawn)

    monkeypatch.setattr(module, "rotate", remember)
    adapter(network, images)
    copy = make_image_network()
    parameters = list(copy.backbone.network.requires_grad_(True).parameters())
    logits = copy.backbone.auxiliary[ROTATION](copy.backbone(rotate(images.expand(8, -1, -1, -1), turns)))
    slopes = torch.autograd.grad(cross_entropy(logits, turns), parameters)
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes):
            parameter -= 0.05 * slope
        feature = copy.features(images)
    np.testing.assert_allclose(adapted.features[0, 0], copy.raw(feature)[0], atol=1e-5)
    assert len(set(turns.tolist())) > 1


def test_the_rotation_loss_falls_on_the_sample():
    network, images = make_image_network(), make_images(1)
    adapter = create_adapter("ttt", copies=16)
    student = module.backbone_student(network, own_statistics=False)
    backbone = module.inner_backbone(student.network)
    optimizer = torch.optim.SGD(backbone.network.parameters(), lr=1.0)
    losses = []
    for _ in range(30):
        loss = adapter.task(backbone, images, make_generator(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_a_model_without_the_head_is_refused():
    network = make_image_network()
    network.backbone.auxiliary.clear()
    with pytest.raises(Unsuitable, match=r"finetune\.method=rotation"):
        create_adapter("ttt")(network, make_images(1))
