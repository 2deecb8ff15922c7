"""MEMO: one update on one sample by hand; weights are restored."""

import numpy as np
import torch

from sourceward import create_adapter
from sourceward.functional import keyed_normal, row_keys
from tests.adaptation.test_adapters import make_image_network, make_images, make_network, make_rows


def test_one_update_on_features_by_hand():
    network, rows = make_network(), make_rows(3)
    network.centers.copy_(network.centers[:1].expand_as(network.centers))  # all sources predict alike
    weight = network.posterior(network.centers).mean[0] / network.dim**0.5
    adapted = create_adapter("memo_features", num_copies=5, learning_rate=0.7, noise_std=0.3)(network, rows)
    for row, answer in zip(rows, adapted.probabilities):
        eps = keyed_normal(row_keys(row[None].numpy(), 0), 0, network.dim, draws=5)[:, 0]
        scale, shift = torch.ones_like(row), torch.zeros_like(row)
        for p in (scale, shift):
            p.requires_grad_(True)
        mean = (((row + 0.3 * eps) * scale + shift) @ weight.T).softmax(-1).mean(0)
        slopes = torch.autograd.grad(-(mean * mean.log()).sum(), (scale, shift))
        moved = row * (1 - 0.7 * slopes[0]) - 0.7 * slopes[1]
        np.testing.assert_allclose((moved @ weight.T).softmax(-1), answer, atol=1e-5)


def test_weights_are_restored_after_each_image():
    network, images = make_image_network(), make_images(3)
    adapter = create_adapter("memo", num_copies=4, learning_rate=0.5)
    whole = adapter(network, images).probabilities
    again = adapter(network, images.flip(0)).probabilities[::-1]
    np.testing.assert_allclose(whole, again, atol=1e-6)
    none = create_adapter("none")(network, network.features(images)).probabilities
    assert np.abs(whole - none).max() > 1e-4


def test_updates_lower_the_entropy_of_an_image():
    network, images = make_image_network(), make_images(1)
    none = create_adapter("none")(network, network.features(images)).probabilities
    p = create_adapter("memo", num_copies=8, learning_rate=0.05, num_updates=20)(
        network, images
    ).probabilities
    assert -(p * np.log(p)).sum() < -(none * np.log(none)).sum()
