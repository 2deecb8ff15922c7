"""FeatureStatistics of early maps: taken over from a source while a backbone looks, and found in any network."""

import pytest
import torch
from torch import nn

from sourceward.nn import Network
from sourceward.nn.backbones import create_backbone
from sourceward.nn.feature_statistics import (
    FeatureStatistics,
    adain,
    early_maps,
    feature_statistics,
    mean_statistics,
)
from tests.adaptation.test_adapters import make_image_network, make_images


def maps(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * 3 + 2


def test_the_moments_are_those_that_were_asked_for():
    wanted = torch.stack([torch.arange(5.0), torch.arange(1.0, 6.0)])
    there = adain(maps(4, 5, 6, 7), wanted)
    torch.testing.assert_close(feature_statistics(there), wanted.expand(4, 2, 5), atol=1e-4, rtol=1e-4)


def test_its_own_moments_change_nothing_and_a_flat_map_stays_flat():
    one = maps(1, 5, 6, 7)
    torch.testing.assert_close(adain(one, feature_statistics(one)[0]), one, atol=1e-5, rtol=1e-5)
    flat = adain(torch.full((1, 1, 2, 2), 7.0), torch.tensor([[1.0], [9.0]]))
    assert torch.equal(flat, torch.ones(1, 1, 2, 2))


def test_half_precision_stays_half():
    assert adain(maps(2, 3, 4, 4).bfloat16(), torch.ones(2, 3)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("spec", "size", "places"),
    [
        ("torchvision:resnet50", 64, ("layer1", "layer2")),
        ("torchvision:resnet50-v1", 97, ("layer1", "layer2")),
        ("torchvision:mobilenet_v2", 64, ("features.3", "features.6")),
        ("timm:convnext_atto", 64, ("stages.0", "stages.1")),
        ("timm:efficientnet_b0", 64, ("blocks.1", "blocks.2")),
        ("timm:vit_tiny_patch16_224", 224, ()),
        ("tiny:conv", 32, ("5", "8")),
    ],
)
def test_early_maps_are_the_ends_of_stages(spec, size, places):
    backbone = create_backbone(spec, weights=None, image_size=size).eval()
    assert early_maps(backbone.network, (size, size)) == places


def network_with_moments() -> Network:
    network = make_image_network()
    backbone = network.backbone
    seen = [
        mean_statistics(backbone, ["network.5", "network.8"], [make_images(8) * (source + 1) / 3])
        for source in range(network.sources)
    ]
    network.feature_statistics = FeatureStatistics(
        {place: torch.stack([of[place] for of in seen]) for place in seen[0]}
    )
    return network


def test_a_network_sees_an_image_with_the_moments_of_a_source_and_then_as_before():
    network, images = network_with_moments(), make_images(6)
    before, inner = network.features(images), nn.Sequential(*network.backbone.network)
    for source in range(network.sources):
        with network.toward(source):
            assert network.moved
            there = network.features(images)
        first = adain(inner[:6](images), network.feature_statistics.state_dict()["network/5"][source])
        second = adain(inner[6:9](first), network.feature_statistics.state_dict()["network/8"][source])
        expected = network.rescale(inner[9:](second))
        torch.testing.assert_close(there, expected)
        assert not torch.allclose(there, before)
    assert not network.moved
    assert torch.equal(network.features(images), before)


def test_an_error_leaves_no_hooks():
    network, images = network_with_moments(), make_images(2)
    before = network.features(images)
    with pytest.raises(ZeroDivisionError), network.toward(0):
        raise ZeroDivisionError
    assert torch.equal(network.features(images), before)


def test_an_image_is_moved_by_itself():
    network, images = network_with_moments(), make_images(7)
    with network.toward(1):
        together = network.features(images)
        alone = torch.cat([network.features(image[None]) for image in images])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_moments_travel_with_the_weights():
    network = network_with_moments()
    other = make_image_network()
    other.load_state_dict(network.state_dict())
    assert other.feature_statistics is not None
    images = make_images(3)
    with network.toward(2), other.toward(2):
        assert torch.equal(network.features(images), other.features(images))


def test_a_network_without_maps_has_none():
    assert early_maps(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), (4, 4)) == ()
