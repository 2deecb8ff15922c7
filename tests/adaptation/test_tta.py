"""Test-time augmentation: the average over the image and transformed copies of it."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward._util.errors import InputError
from sourceward.adaptation import Unsuitable
from sourceward.adaptation.images import inner_backbone
from sourceward.adaptation.tta import Statistics, average, copies_of, copy_features, flat
from sourceward.data.transforms import (
    OWN,
    TRANSFORMS,
    list_transforms,
    make_copies,
    mean_amplitude,
    parse_transforms,
)
from sourceward.nn.backbones.preprocessing import normalize
from sourceward.nn.feature_statistics import FeatureStatistics
from tests.adaptation.test_adapters import make_generator, make_image_network

HALF = (0.5, 0.5, 0.5)


def byte_images(rows: int, seed: int = 9) -> torch.Tensor:
    generator = make_generator(seed)
    return torch.randint(256, (rows, 3, 16, 16), dtype=torch.uint8, generator=generator)


def make_images(rows: int) -> torch.Tensor:
    """Bytes, as `make_image_network` takes them."""
    return normalize(byte_images(rows), HALF, HALF)


@pytest.fixture(scope="module")
def network():
    """With amplitudes and feature statistics of its sources."""
    network = make_image_network()
    amplitudes = [mean_amplitude([byte_images(4, seed)]) for seed in range(network.sources)]
    network.amplitudes = torch.stack(amplitudes)
    backbone = inner_backbone(network)
    layer = next(name for name, module in backbone.named_modules() if isinstance(module, torch.nn.Conv2d))
    channels = backbone.get_submodule(layer).out_channels
    values = torch.rand(network.sources, 2, channels, generator=make_generator(1)) + 0.5
    network.feature_statistics = FeatureStatistics({layer: values})
    return network


def unadapted(network, images):
    return create_adapter("none")(network, network.features(images))


def test_the_prediction_is_the_mean_over_the_copies(network):
    images = make_images(5)
    found = create_adapter("tta", transforms="hflip")(network, images)
    one, other = unadapted(network, images), unadapted(network, images.flip(-1))
    np.testing.assert_allclose(found.probabilities, (one.probabilities + other.probabilities) / 2, atol=1e-5)
    np.testing.assert_allclose(found.per_source, (one.per_source + other.per_source) / 2, atol=1e-5)


def test_a_flipped_image_has_the_same_prediction(network):
    images, adapter = make_images(3), create_adapter("tta", transforms="hflip")
    there, back = (adapter(network, x).probabilities for x in (images, images.flip(-1)))
    np.testing.assert_allclose(there, back, atol=1e-5)


@pytest.mark.parametrize("name", list_transforms())
def test_every_transform_makes_images_like_those_it_is_given(network, name):
    images = byte_images(4)
    before = images.clone()
    copies = list(make_copies(name, images, network.sources, network.amplitudes))
    assert copies
    assert torch.equal(images, before), "the images themselves are left alone"
    for copy in copies:
        assert copy.images.shape == images.shape
        assert copy.images.dtype == torch.uint8
        assert copy.source == OWN or TRANSFORMS[name].needs == "feature_statistics"
    total = sum(copy.weight for copy in copies)
    assert total == pytest.approx(len(copies) if TRANSFORMS[name].each else 1)


@pytest.mark.parametrize("name", list_transforms())
def test_a_copy_does_not_depend_on_the_batch(network, name):
    images = byte_images(5)
    together = make_copies(name, images, network.sources, network.amplitudes)
    alone = make_copies(name, images[2:3], network.sources, network.amplitudes)
    for many, one in zip(together, alone):
        assert (many.images[2].int() - one.images[0].int()).abs().max() <= 1


@pytest.mark.parametrize("name", list_transforms())
def test_every_transform_runs_through_the_adapter(network, name):
    found = create_adapter("tta", transforms=name)(network, make_images(3))
    np.testing.assert_allclose(found.probabilities.sum(1), 1, atol=1e-5)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    create_adapter("tta", transforms=name)(network, make_images(3))
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


def test_no_transform_is_no_adaptation_bit_for_bit(network):
    images = make_images(4)
    found = create_adapter("tta", transforms="")(network, images)
    assert np.array_equal(found.probabilities, unadapted(network, images).probabilities)


def test_adain_changes_the_features_and_leaves_no_trace(network):
    backbone, statistics = inner_backbone(network), Statistics.of(network)
    images = byte_images(3)

    def encode(pixels):
        return network.features(normalize(pixels, HALF, HALF))

    before = encode(images)
    copies = copy_features("adain", statistics, backbone, encode, [images])
    assert len(copies["adain"]) == network.sources
    assert torch.equal(copies[""][0].feature, before)
    assert not any(torch.allclose(copy.feature, before) for copy in copies["adain"])
    assert torch.equal(encode(images), before)


def test_copies_come_in_the_order_of_their_names(network):
    names = [name for name, _ in copies_of(byte_images(1), "crop+hflip", Statistics.of(network))]
    assert names == ["", "crop", "hflip"]
    found = copy_features("crop+hflip", Statistics.of(network), None, lambda x: x.float().flatten(1), [])
    assert flat(found) == []


def test_one_result_is_its_own_average(network):
    result = unadapted(network, make_images(2))
    assert average([result], [1.0]) is result


@pytest.mark.parametrize("name", ["fourier", "adain"])
def test_a_network_without_statistics_is_refused(name):
    with pytest.raises(Unsuitable, match=name):
        create_adapter("tta", transforms=name)(make_image_network(), make_images(1))


def test_names_are_checked():
    assert parse_transforms("") == []
    with pytest.raises(InputError, match=r"Unknown transform 'hflp'. Did you mean 'hflip'"):
        create_adapter("tta", transforms="hflp")
    with pytest.raises(InputError, match="Expected each transform once"):
        parse_transforms("crop+crop")
