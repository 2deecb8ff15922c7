"""ImageEncoder: the features of the network, and whether a captured graph would still be valid."""

import copy

import pytest
import torch

from sourceward.nn import Network, Projected
from sourceward.nn.backbones import create_backbone
from sourceward.nn.encoder import ImageEncoder
from tests.helpers import make_generator


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    backbone = create_backbone("tiny:conv", image_size=16)
    return Network(2, 3, backbone.dim, backbone=backbone).eval().requires_grad_(False)


def encoder(network: Network) -> ImageEncoder:
    backbone = network.backbone
    return ImageEncoder(network, getattr(backbone, "backbone", backbone).preprocessing)


def test_it_gives_the_features_of_the_network(network):
    images = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8, generator=make_generator())
    normalised = network.backbone.preprocessing.normalize(images)
    torch.testing.assert_close(encoder(network)(images), network.features(normalised))


def test_it_is_valid_after_a_change_in_place_and_not_after_a_move_in_memory(network):
    ours, parameter = encoder(network), next(network.backbone.parameters())
    assert ours.valid()
    parameter.data.mul_(2)
    assert ours.valid()
    parameter.data = parameter.data.clone()
    assert not ours.valid()


def replace_a_parameter(backbone):
    layer = next(module for module in backbone.modules() if isinstance(module, torch.nn.Conv2d))
    layer.weight = torch.nn.Parameter(2 * layer.weight)


def replace_a_buffer(backbone):
    layer = next(module for module in backbone.modules() if isinstance(module, torch.nn.BatchNorm2d))
    layer.running_mean = layer.running_mean + 1


def replace_a_module(backbone):
    backbone.network[0] = copy.deepcopy(backbone.network[0])


@pytest.mark.parametrize("change", [replace_a_parameter, replace_a_buffer, replace_a_module])
def test_it_is_not_valid_after_a_replacement(network, change):
    ours = encoder(network)
    change(network.backbone)
    assert not ours.valid()
    assert encoder(network).valid()


def test_it_is_not_valid_after_the_projection_was_replaced(network):
    network.backbone = Projected(network.backbone, torch.eye(network.dim))
    ours = encoder(network)
    assert ours.valid()
    network.backbone.projection = 2 * network.backbone.projection
    assert not ours.valid()


def test_it_is_not_valid_for_another_backbone(network):
    ours = encoder(network)
    network.backbone = create_backbone("tiny:conv", image_size=16)
    assert not ours.valid()
