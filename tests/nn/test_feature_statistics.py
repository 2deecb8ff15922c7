"""AdaIN: maps get the statistics of a source, row by row, in any convolutional backbone."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from sourceward.nn import Network
from sourceward.nn.backbones import create_backbone
from sourceward.nn.feature_statistics import (
    AdaIN,
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


@contextmanager
def adain_to(network: Network, source: int):
    """Copy by copy: the reference. A hook replaces the statistics of every row by those of one source."""
    handles = [
        network.backbone.get_submodule(name.replace("/", ".")).register_forward_hook(
            lambda _module, _inputs, maps, target=values[source]: adain(maps, target)
        )
        for name, values in network.feature_statistics.named_buffers()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def by_hand(network: Network, images: torch.Tensor) -> list[torch.Tensor]:
    """Features of the images under the statistics of each source, a pass for each."""
    found = []
    for source in range(SOURCES):
        with adain_to(network, source):
            found.append(network.backbone(images))
    return found


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


def test_one_pass_serves_all_copies(network):
    """Copies that keep their statistics equal a plain pass, the others a pass for their source."""
    own = [make_images(4), make_images(4).flip(-1)]
    module = network.feature_statistics.applied(network.backbone, 2, range(SOURCES))
    found = module(torch.cat([*own, *[own[0]] * SOURCES])).unflatten(0, (2 + SOURCES, -1))
    expected = [*map(network.backbone, own), *by_hand(network, own[0])]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found[0], found[-1])


def test_a_source_without_copies_of_its_own(network):
    """Only copies for sources, as where the plain prediction is known already."""
    images = make_images(3)
    changed = network.feature_statistics.applied(network.backbone, 0, range(SOURCES))
    found = changed(images.repeat(SOURCES, 1, 1, 1)).unflatten(0, (SOURCES, -1))
    torch.testing.assert_close(found, torch.stack(by_hand(network, images)), atol=1e-5, rtol=1e-5)


def test_the_copy_has_the_tensors_of_the_backbone_and_no_hooks(network):
    images = make_images(2)
    before = network.backbone(images)
    module = network.feature_statistics.applied(network.backbone, 1, range(SOURCES))
    own = {tensor.data_ptr() for tensor in network.state_dict().values()}
    assert {tensor.data_ptr() for tensor in module.state_dict().values()} <= own
    assert not any(part._forward_hooks for part in module.modules())
    assert torch.equal(network.backbone(images), before)
    next(network.backbone.parameters()).data.mul_(1.5)
    found = module(images.repeat(1 + SOURCES, 1, 1, 1))[:2]
    torch.testing.assert_close(found, network.backbone(images), msg="a change in place is seen")


def test_rows_that_keep_their_statistics_may_be_infinite_elsewhere(network):
    """A target that overflows does not reach rows that keep their own statistics."""
    images = make_images(2)
    for values in network.feature_statistics.buffers():
        values.fill_(float("inf"))
    changed = network.feature_statistics.applied(network.backbone, 1, range(SOURCES))
    found = changed(images.repeat(1 + SOURCES, 1, 1, 1))
    torch.testing.assert_close(found[:2], network.backbone(images))


def test_statistics_load_into_a_fresh_network(network):
    backbone = create_backbone("tiny:conv", image_size=16)
    other = Network(SOURCES, 4, backbone.dim, backbone=backbone).eval().requires_grad_(False)
    other.load_state_dict(network.state_dict())
    images = make_images(1 + SOURCES)
    ours, theirs = (
        n.feature_statistics.applied(n.backbone, 1, range(SOURCES))(images) for n in (network, other)
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("own", "toward"), [(2, (0, 1, -2)), (0, (-2,)), (1, (-2,))])
def test_channels_that_are_last_in_memory_stay_there(own, toward, rows):
    """Otherwise every layer after it copies its input."""
    copies = own + len(toward)
    maps = make_maps(rows * copies, 16, 8, 8).bfloat16().contiguous(memory_format=torch.channels_last)
    changed = AdaIN(nn.Identity(), torch.rand(3, 2, 16), own, toward)(maps)
    assert changed.shape == (rows * (own + len(toward)), 16, 8, 8)
    assert changed.is_contiguous(memory_format=torch.channels_last)
    assert not AdaIN(nn.Identity(), torch.rand(3, 2, 16), own, toward)(maps.contiguous()).is_contiguous(
        memory_format=torch.channels_last
    )
