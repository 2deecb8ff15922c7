"""Test-time augmentation: the average over the image and transformed copies of it."""

import operator

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward._util.errors import InputError
from sourceward.adaptation import Unsuitable
from sourceward.adaptation.base import image_preprocessing, inner_backbone
from sourceward.adaptation.copies import CopyEncoder, Statistics, copies_of
from sourceward.adaptation.tta import average, copy_features
from sourceward.data.transforms import (
    MEAN,
    OWN,
    TRANSFORMS,
    _interpolated,
    _known_places,
    as_bytes,
    center_crop,
    list_transforms,
    make_copies,
    mean_amplitude,
    parse_transforms,
)
from sourceward.nn.backbones.preprocessing import ImagePreprocessing, normalize
from sourceward.nn.feature_statistics import FeatureStatistics, adain
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
    alone = [unadapted(network, image).probabilities for image in images.split(1)]
    assert np.array_equal(found.probabilities, np.concatenate(alone))


def encoder_of(network, names, plain=True):
    return CopyEncoder(network.backbone, image_preprocessing(network), names, Statistics.of(network), plain)


def copy_by_copy(network, names, images):
    """The reference: a pass of the backbone for each copy, by its transform and source."""
    backbone, found = inner_backbone(network), {}
    for number, (name, copy) in enumerate(copies_of(images, names, Statistics.of(network))):
        rows = normalize(copy.images, HALF, HALF)
        if copy.source != OWN:
            (layer,) = network.feature_statistics.state_dict()
            values = network.feature_statistics.get_buffer(layer)
            target = values.mean(0) if copy.source == MEAN else values[copy.source]
            module = backbone.get_submodule(layer.replace("/", "."))
            handle = module.register_forward_hook(lambda _m, _i, maps, target=target: adain(maps, target))
            found[name, number] = network.backbone(rows)
            handle.remove()
        else:
            found[name, number] = network.backbone(rows)
    return found


@pytest.mark.parametrize("plain", [True, False], ids=["with the image", "copies only"])
@pytest.mark.parametrize(
    "names", [*list_transforms(), "hflip+crop+adain_mean", "adain+rotate+adain_mean+fourier"]
)
def test_one_pass_equals_copy_by_copy(network, names, plain):
    images, encoder = byte_images(5), encoder_of(network, names, plain)
    expected = copy_by_copy(network, names, images)
    if not plain:
        del expected["", 0]
    places = sorted(expected, key=lambda key: key[0].startswith("adain"))
    assert encoder.names == tuple(name for name, _ in places)
    wanted = torch.stack([expected[key] for key in places])
    torch.testing.assert_close(encoder(images).unflatten(0, (len(places), -1)), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.encode(images), wanted, atol=1e-5, rtol=1e-4)


def test_what_comes_before_adain_is_computed_once(network):
    images, encoder = byte_images(5), encoder_of(network, "hflip+adain")
    assert encoder.shared
    assert len(encoder.pixels(images)) == 10, "the image and its mirror image, not the copies of sources"


@pytest.mark.parametrize("names", ["hflip+adain", "adain_mean+crop+adain"])
def test_the_bits_of_a_copy_do_not_depend_on_the_other_transforms(network, names):
    """A cascade computes copies level by level."""
    images, encoder = byte_images(5), encoder_of(network, names)
    expected = encoder.encode(images)
    for name in dict.fromkeys(encoder.names):
        places = [place for place, own in enumerate(encoder.names) if own == name]
        alone = encoder_of(network, name, plain=not name).encode(images)
        assert torch.equal(alone, expected[places]), name


class Around(torch.nn.Module):
    """The input reaches the end around the map that AdaIN changes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 4, 3, 4, 1), torch.nn.Conv2d(7, 6, 3, 2, 1)

    def forward(self, images):
        pooled = torch.nn.functional.avg_pool2d(images, 4)
        return self.second(torch.cat([self.first(images), pooled], 1)).mean((2, 3))


def test_a_connection_around_the_map_needs_all_copies():
    torch.manual_seed(0)
    network, prepared = Around(), ImagePreprocessing((16, 16), HALF, HALF)
    statistics = FeatureStatistics({"first": torch.rand(3, 2, 4)})
    encoder = CopyEncoder(network, prepared, "adain", Statistics(3, None, statistics))
    images = byte_images(2)
    assert not encoder.shared
    assert encoder.pixels(images).shape[0] == 8
    torch.testing.assert_close(encoder(images)[:2], network(normalize(images, HALF, HALF)))
    torch.testing.assert_close(encoder.encode(images).flatten(0, 1), encoder(images))


@pytest.mark.parametrize("names", ["hflip+adain", "crop+grayscale"])
def test_the_encoder_is_exported_for_any_batch(network, names):
    encoder, images = encoder_of(network, names), byte_images(4)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(encoder, (images,), dynamic_shapes=({0: rows},))
    for count in (2, 7):
        other = byte_images(count, 1)
        torch.testing.assert_close(program.module()(other), encoder(other), atol=1e-5, rtol=1e-4)


def test_copies_come_in_the_order_of_their_names(network):
    names = [name for name, _ in copies_of(byte_images(1), "crop+hflip", Statistics.of(network))]
    assert names == ["", "crop", "hflip"]
    assert list(copy_features(encoder_of(network, "crop+hflip"), [byte_images(2)] * 2)) == [
        "",
        "crop",
        "hflip",
    ]
    assert copy_features(encoder_of(network, "crop"), []) == {}


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


@pytest.mark.parametrize("side", [16, 97, 224])
def test_both_ways_to_crop_give_the_same_bytes(side):
    """That of CUDA and exported graphs, and torch's own."""
    for levels in (256, 2):  # black and white has many ties
        bytes_ = torch.randint(levels, (2, 3, side, side), generator=make_generator()) * (255 // (levels - 1))
        images = bytes_.double() / 255
        gathered = _interpolated(_interpolated(images, -2), -1)
        assert torch.equal(as_bytes(gathered), as_bytes(center_crop(images)))


def test_places_of_a_crop_stay_where_captured_graphs_read_them():
    _known_places.cache_clear()
    with torch.inference_mode():
        first = _known_places(16, torch.device("cpu"))
    for side in range(17, 80):
        _known_places(side, torch.device("cpu"))
    assert all(map(operator.is_, _known_places(16, torch.device("cpu")), first))
    images = torch.rand(1, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    _interpolated(images, -1).sum().backward()
    assert images.grad.sum() == pytest.approx(images.numel())


@pytest.mark.parametrize("name", [name for name in list_transforms() if TRANSFORMS[name].exact])
def test_an_exact_transform_gives_the_bytes_that_arithmetic_gives(name):
    images = byte_images(4)
    (copy,) = make_copies(name, images)
    (computed,) = TRANSFORMS[name].pixels(images.double() / 255, None)
    assert torch.equal(copy.images, as_bytes(computed))
