"""Prediction-time batch norm against the tiny backbone written out."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward.adaptation import Unsuitable
from sourceward.nn import Network
from sourceward.nn.backbones import create_backbone
from tests.adaptation.test_adapters import CLASSES, SOURCES, make_image_network, make_images


def by_hand(network, images, share):
    """The tiny backbone with `share` of the stored statistics and 1 - `share` of the batch's."""
    body, x = network.backbone.network, images.double()
    for layer in (0, 3, 6):
        norm = body[layer + 1]
        x = torch.nn.functional.conv2d(x, body[layer].weight.double(), stride=2, padding=1)
        mean = share * norm.running_mean + (1 - share) * x.mean((0, 2, 3))
        var = share * norm.running_var + (1 - share) * x.var((0, 2, 3), correction=0)
        x = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        x = (x * norm.weight[:, None, None] + norm.bias[:, None, None]).relu()
    return torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)


@pytest.mark.parametrize(("prior", "share"), [(0, 0.0), (15, 0.75)])
def test_statistics(prior, share):
    network, images = make_image_network(), make_images(10)
    adapted = create_adapter("batchnorm", batch_size=5, prior=prior)(network, images)
    expected = torch.cat([by_hand(network, part, share) for part in images.split(5)])
    np.testing.assert_allclose(adapted.features[:, 0], expected, atol=1e-4)
    assert adapted.features.shape[1] == SOURCES


def test_a_large_prior_equals_no_adaptation():
    network, images = make_image_network(), make_images(10)
    adapted = create_adapter("batchnorm", prior=1e12)(network, images)
    none = create_adapter("none")(network, network.features(images))
    np.testing.assert_allclose(adapted.probabilities, none.probabilities, atol=1e-5)


def test_a_backbone_without_batch_norm_is_refused():
    backbone = create_backbone("tiny:text")
    network = Network(SOURCES, CLASSES, backbone.dim, backbone=backbone)
    with pytest.raises(Unsuitable, match="this backbone has none"):
        create_adapter("batchnorm")(network, backbone.prepare(["a text"]))
    with pytest.raises(Unsuitable, match="no norm layer"):
        create_adapter("tent")(network, backbone.prepare(["a text"]))
