"""MEMO: the entropy of the mean answer over views, one step, one sample, and back."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward.adaptation.baselines.memo import image_preprocessing, marginal_entropy
from sourceward.functional import keyed_normal, row_keys
from sourceward.nn.backbones.preprocessing import denormalize as pixels
from tests.adaptation.test_adapters import make_image_network, make_images, make_network, make_rows


def test_marginal_entropy_of_known_answers():
    p = np.array([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4]])
    mean = p.mean(0)
    assert marginal_entropy(torch.tensor(p).log()).item() == pytest.approx(-(mean * np.log(mean)).sum())


def test_a_step_on_features_by_hand():
    network, rows = make_network(), make_rows(3)
    network.centers.copy_(network.centers[:1].expand_as(network.centers))  # all sources vote alike
    weight = network.posterior(network.centers).mean[0] / network.dim**0.5
    adapted = create_adapter("memo_features", views=5, rate=0.7, noise=0.3)(network, rows)
    for row, answer in zip(rows, adapted.probabilities):
        eps = keyed_normal(row_keys(row[None].numpy(), 0), 0, network.dim, draws=5)[:, 0]
        scale, shift = torch.ones_like(row), torch.zeros_like(row)
        for p in (scale, shift):
            p.requires_grad_(True)
        mean = (((row + 0.3 * eps) * scale + shift) @ weight.T).softmax(-1).mean(0)
        slopes = torch.autograd.grad(-(mean * mean.log()).sum(), (scale, shift))
        moved = row * (1 - 0.7 * slopes[0]) - 0.7 * slopes[1]
        np.testing.assert_allclose((moved @ weight.T).softmax(-1), answer, atol=1e-5)


def test_on_images_the_weights_go_back_after_each_sample():
    network, images = make_image_network(), make_images(3)
    adapter = create_adapter("memo", views=4, rate=0.5)
    whole = adapter(network, images).probabilities
    again = adapter(network, images.flip(0)).probabilities[::-1]
    np.testing.assert_allclose(whole, again, atol=1e-6)
    none = create_adapter("none")(network, network.features(images)).probabilities
    assert np.abs(whole - none).max() > 1e-4


def test_on_images_the_marginal_entropy_falls():
    network, images = make_image_network(), make_images(1)
    none = create_adapter("none")(network, network.features(images)).probabilities
    p = create_adapter("memo", views=8, rate=0.05, steps=20)(network, images).probabilities
    assert -(p * np.log(p)).sum() < -(none * np.log(none)).sum()


def test_pixels_come_back_from_normalised_images():
    images = torch.randint(256, (2, 3, 16, 16), dtype=torch.uint8)
    looks = image_preprocessing(make_image_network())
    back = pixels(looks.normalize(images), looks.mean, looks.std)
    assert torch.equal((back * 255).round().byte(), images)
