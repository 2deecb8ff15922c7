"""AdaIN: maps get the statistics of a source, row by row, in any convolutional backbone."""

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
from tests.helpers import make_generator

SOURCES, MAPS = 3, ("network.5", "network.8")


def make_maps(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=make_generator(1)) * 3 + 2


def make_images(rows: int) -> torch.Tensor:
    return torch.rand(rows, 3, 16, 16, generator=make_generator(3)) * 2 - 1


@pytest.fixture
def network() -> Network:
    """With a small convolutional backbone and the statistics of three sources."""
    torch.manual_seed(0)
    backbone = create_backbone("tiny:conv", image_size=16)
    network = Network(SOURCES, 4, backbone.dim, backbone=backbone).eval().requires_grad_(False)
    found = [mean_statistics(backbone, MAPS, [make_images(8) * (i + 1) / 3]) for i in range(SOURCES)]
    network.feature_statistics = FeatureStatistics(
        {name: torch.stack([of[name] for of in found]) for name in MAPS}
    )
    return network


def adain_to(network: Network, source: int | torch.Tensor):
    return network.feature_statistics.adain(network.backbone, source)


def test_maps_get_the_given_statistics():
    wanted = torch.stack([torch.arange(5.0), torch.arange(1.0, 6.0)])
    found = feature_statistics(adain(make_maps(4, 5, 6, 7), wanted))
    torch.testing.assert_close(found, wanted.expand(4, 2, 5), atol=1e-4, rtol=1e-4)


def test_each_row_gets_its_own_statistics():
    maps, wanted = make_maps(4, 5, 6, 7), torch.rand(4, 2, 5, generator=make_generator(2))
    for row, (given, found) in enumerate(zip(wanted, adain(maps, wanted))):
        assert torch.equal(found, adain(maps, given)[row])


def test_own_statistics_change_nothing_and_a_constant_map_stays_constant():
    one = make_maps(1, 5, 6, 7)
    torch.testing.assert_close(adain(one, feature_statistics(one)[0]), one, atol=1e-5, rtol=1e-5)
    constant = adain(torch.full((1, 1, 2, 2), 7.0), torch.tensor([[1.0], [9.0]]))
    assert torch.equal(constant, torch.ones(1, 1, 2, 2))


def test_the_type_of_maps_is_kept():
    assert adain(make_maps(2, 3, 4, 4).bfloat16(), torch.ones(2, 3)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("spec", "size", "names"),
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
def test_early_maps_are_the_ends_of_stages(spec, size, names):
    backbone = create_backbone(spec, weights=None, image_size=size).eval()
    assert early_maps(backbone.network, (size, size)) == names


def test_a_network_without_maps_has_no_early_maps():
    assert early_maps(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), (4, 4)) == ()


def test_the_backbone_uses_the_statistics_of_a_source_within_the_context_only(network):
    images = make_images(6)
    before, inner = network.features(images), nn.Sequential(*network.backbone.network)
    statistics = network.feature_statistics.state_dict()
    for source in range(SOURCES):
        with adain_to(network, source):
            found = network.features(images)
        first = adain(inner[:6](images), statistics["network/5"][source])
        second = adain(inner[6:9](first), statistics["network/8"][source])
        torch.testing.assert_close(found, network.rescale(inner[9:](second)))
        assert not torch.allclose(found, before)
    assert torch.equal(network.features(images), before)


def test_one_pass_serves_copies_with_different_sources(network):
    """Rows with a source equal a pass for that source, rows with -1 a pass without AdaIN, bit for bit."""
    images, source = make_images(8), torch.tensor([2, -1, 0, 1, -1, 2, 0, 0])
    expected = network.features(images)
    for number in range(SOURCES):
        with adain_to(network, number):
            expected = torch.where((source == number).unsqueeze(1), network.features(images), expected)
    with adain_to(network, source):
        assert torch.equal(network.features(images), expected)


def test_rows_that_keep_their_statistics_may_be_infinite_elsewhere(network):
    """A target that overflows does not reach rows that keep their own statistics."""
    images = make_images(2)
    before = network.features(images)
    for values in network.feature_statistics.buffers():
        values.fill_(float("inf"))
    with adain_to(network, torch.tensor([-1, -1])):
        assert torch.equal(network.features(images), before)


def test_a_source_is_needed_for_each_row(network):
    with (
        pytest.raises(ValueError, match="Expected `source` for each of 3 rows, but got 2"),
        adain_to(network, torch.tensor([0, 1])),
    ):
        network.features(make_images(3))


def test_an_error_leaves_no_hooks(network):
    images = make_images(2)
    before = network.features(images)
    with pytest.raises(ZeroDivisionError), adain_to(network, 0):
        raise ZeroDivisionError
    assert torch.equal(network.features(images), before)


def test_an_image_does_not_depend_on_the_rest_of_its_batch(network):
    images = make_images(7)
    with adain_to(network, 1):
        together = network.features(images)
        alone = torch.cat([network.features(image[None]) for image in images])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_statistics_load_into_a_fresh_network(network):
    backbone = create_backbone("tiny:conv", image_size=16)
    other = Network(SOURCES, 4, backbone.dim, backbone=backbone).eval().requires_grad_(False)
    other.load_state_dict(network.state_dict())
    images = make_images(3)
    with adain_to(network, 2), adain_to(other, 2):
        assert torch.equal(network.features(images), other.features(images))
