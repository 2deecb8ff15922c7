"""TTT: one update by hand, and the rotation head it needs."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward.adaptation import Unsuitable
from sourceward.adaptation.baselines.batches import sample_generators
from sourceward.adaptation.baselines.ttt import rotation_loss
from sourceward.data.image_ops import rotate_quarters
from tests.adaptation.test_adapters import make_image_network, make_images
from tests.helpers import make_generator


def test_rotations():
    images = make_images(4)
    rotated = rotate_quarters(images, torch.tensor([0, 1, 2, 3]))
    assert torch.equal(rotated[0], images[0])
    assert torch.equal(rotated[1], images[1].transpose(1, 2).flip(1))
    assert torch.equal(rotated[2], images[2].flip(1, 2))
    assert torch.equal(rotate_quarters(rotated[3:], torch.tensor([1])), images[3:])


def test_one_update_by_hand():
    """theta <- theta - learning_rate d loss / d theta for the backbone alone, then the image's features."""
    network, images = make_image_network(), make_images(2)
    adapted = create_adapter("ttt", num_copies=8, learning_rate=0.05)(network, images)
    for row, generator in enumerate(sample_generators(images, seed=0)):
        copy, image = make_image_network(), images[row : row + 1]
        parameters = list(copy.backbone.network.requires_grad_(True).parameters())
        loss = rotation_loss(copy.backbone, image.expand(8, -1, -1, -1), generator)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter -= 0.05 * gradient
            feature = copy.features(image)
        np.testing.assert_allclose(adapted.features[row, 0], copy.raw(feature)[0], atol=1e-5)


def test_the_rotation_loss_of_an_image_can_be_minimised():
    backbone, image = make_image_network().backbone, make_images(1)
    optimizer = torch.optim.SGD(backbone.network.requires_grad_(True).parameters(), lr=1.0)
    losses = []
    for _ in range(30):
        loss = rotation_loss(backbone, image.expand(16, -1, -1, -1), make_generator(0))
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
