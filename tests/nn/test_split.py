"""A network in two parts gives the bits of the whole, or is not split."""

import pytest
import torch
from torch import nn

from sourceward.nn.backbones import create_backbone
from sourceward.nn.feature_statistics import early_maps
from sourceward.nn.split import split_at


class Around(nn.Module):
    """The input of the first module reaches the last one."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, 1)

    def forward(self, images):
        return self.last(self.first(images) + images)


class Between(nn.Module):
    """Something is computed between two modules before the split."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, 1)

    def forward(self, images):
        return self.last(self.second(self.first(images) * 2))


@pytest.mark.parametrize(
    "name", ["tiny:conv", "torchvision:resnet18", "timm:resnet18", "torchvision:mobilenet_v2"]
)
def test_the_parts_of_a_backbone_give_its_bits(name):
    torch.manual_seed(0)
    backbone = create_backbone(name, weights=None, image_size=32).eval().requires_grad_(False)
    layer, *_ = early_maps(backbone, (32, 32))
    first, rest = split_at(backbone, layer, torch.randn(1, 3, 32, 32))
    images = torch.randn(2, 3, 32, 32)
    maps = first(images)
    assert maps.shape[-2:] == (8, 8), "of stride 4"
    assert torch.equal(rest(maps), backbone(images))
    own = {tensor.data_ptr() for tensor in backbone.parameters()}
    assert {tensor.data_ptr() for part in (first, rest) for tensor in part.parameters()} <= own
    assert sum(len([*part.parameters()]) for part in (first, rest)) >= len([*backbone.parameters()])


@pytest.mark.parametrize("network", [Around(), Between()])
def test_what_the_parts_would_not_compute_is_not_split(network):
    layer = "first" if isinstance(network, Around) else "second"
    assert split_at(network, layer, torch.randn(1, 3, 4, 4)) is None


def test_a_module_that_is_not_called_is_not_split():
    network = nn.Sequential(nn.Conv2d(3, 4, 1))
    network.add_module("unused", nn.Identity())
    network.forward = lambda images: network[0](images)
    assert split_at(network, "unused", torch.randn(1, 3, 4, 4)) is None
