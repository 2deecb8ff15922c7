"""Test-time augmentation: the average over the image and transformed copies of it."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward._util.errors import InputError
from sourceward.adaptation import Unsuitable
from sourceward.adaptation.base import inner_backbone
from sourceward.adaptation.copies import CopyEncoder, Statistics, copies_of
from sourceward.adaptation.tta import average, copy_features
from sourceward.data.transforms import (
    MEAN,
    OWN,
    TRANSFORMS,
    _known_weights,
    _weights,
    as_bytes,
    center_crop,
    list_transforms,
    make_copies,
    mean_amplitude,
    parse_transforms,
    shrink,
)
from sourceward.nn.alone import encode_alone
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


def test_no_transform_is_no_adaptation(network):
    images = make_images(4)
    found = create_adapter("tta", transforms="")(network, images)
    feature = torch.cat(encode_alone([(network.features, image) for image in images.split(1)]))
    plain = create_adapter("none")(network, feature)
    assert np.array_equal(found.probabilities, plain.probabilities)


@dataclass(frozen=True)
class Sized(ImagePreprocessing):
    """Copies of any size, whatever the strides of backbones are."""

    size: tuple[int, int] = (16, 16)
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    small: tuple[int, int] = (16, 16)

    @property
    def copy_size(self):
        return self.small


def encoder_of(network, names, plain=True, size=(16, 16)):
    return CopyEncoder(network.backbone, Sized(small=size), names, Statistics.of(network), plain)


def copy_by_copy(network, names, images, size):
    """The reference: a pass of the backbone for each copy, by its transform and source."""
    backbone, found = inner_backbone(network), {}
    for number, (name, copy) in enumerate(copies_of(images, names, Statistics.of(network), size)):
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


SIZES = pytest.mark.parametrize("size", [(16, 16), (12, 9)], ids=["copies as large", "smaller copies"])


SETS = [*list_transforms(), "hflip+crop+adain_mean", "adain+rotate+adain_mean+fourier"]


@SIZES
@pytest.mark.parametrize(
    ("names", "plain"), [("", True), *((names, plain) for names in SETS for plain in (True, False))]
)
def test_one_encoder_equals_copy_by_copy(network, names, plain, size):
    images, encoder = byte_images(5), encoder_of(network, names, plain, size)
    expected = copy_by_copy(network, names, images, size)
    if not plain:
        del expected["", 0]
    places = sorted(expected, key=lambda key: key[0].startswith("adain"))
    assert encoder.names == tuple(name for name, _ in places)
    wanted = torch.stack([expected[key] for key in places])
    torch.testing.assert_close(encoder(images).unflatten(0, (len(places), -1)), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.encode(images), wanted, atol=1e-5, rtol=1e-4)


def test_small_copies_are_apart_from_the_images(network):
    images, size = byte_images(5), (12, 9)
    encoder = encoder_of(network, "hflip+adain_mean", size=size)
    assert encoder.pixels(images).shape == (10, 3, *size), "the rows of the copies alone"
    assert torch.equal(encoder.encode(images)[0], encoder_of(network, "").encode(images)[0])
    assert torch.equal(encoder.pixels(images)[:5], shrink(images, size).flip(-1))


@SIZES
@pytest.mark.parametrize("names", ["hflip+adain", "adain_mean+crop+adain"])
def test_the_bits_of_a_copy_do_not_depend_on_the_other_transforms(network, names, size):
    """A cascade computes copies level by level."""
    images, encoder = byte_images(5), encoder_of(network, names, size=size)
    expected = encoder.encode(images)
    for name in dict.fromkeys(encoder.names):
        places = [place for place, own in enumerate(encoder.names) if own == name]
        alone = encoder_of(network, name, not name, size).encode(images)
        assert torch.equal(alone, expected[places]), name


@SIZES
@pytest.mark.parametrize("names", ["hflip+adain", "crop+grayscale"])
def test_the_encoder_is_exported_for_any_batch(network, names, size):
    encoder, images = encoder_of(network, names, size=size), byte_images(4)
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


def by_matrices(images, kept, size):
    """How CUDA and exported graphs resize."""
    down, across = (_weights(side, *one, images.device) for side, *one in zip(images.shape[-2:], kept, size))
    return down @ images @ across.mT


@pytest.mark.parametrize("levels", [256, 2], ids=["grey", "black and white, with many ties"])
@pytest.mark.parametrize("side", [16, 97, 224])
def test_both_ways_to_resize_give_the_same_bytes(side, levels):
    """That of CUDA and exported graphs, and torch's own."""
    found = torch.randint(levels, (2, 3, side, side), generator=make_generator()) * (255 // (levels - 1))
    images, kept = found.double() / 255, [int(0.85 * side)] * 2
    assert torch.equal(as_bytes(by_matrices(images, kept, (side, side))), as_bytes(center_crop(images)))
    for size in ((5 * side // 7, 6 * side // 7), (side // 3, side)):
        assert torch.equal(as_bytes(by_matrices(images, (side, side), size)), shrink(found.byte(), size))


@pytest.mark.cuda
@pytest.mark.parametrize("name", [name for name in list_transforms() if not TRANSFORMS[name].needs])
def test_copies_on_cuda_have_the_bytes_of_those_on_a_cpu(name):
    images = torch.randint(256, (3, 3, 97, 64), dtype=torch.uint8, generator=make_generator())
    made = [make_copies(name, some, size=(65, 40)) for some in (images, images.cuda())]
    for ours, theirs in zip(*made, strict=True):
        assert torch.equal(ours.images, theirs.images.cpu())


def test_weights_of_a_resize_stay_where_captured_graphs_read_them():
    _known_weights.cache_clear()
    with torch.inference_mode():
        first = _known_weights(16, 16, 12, torch.device("cpu"))
    for side in range(17, 80):
        _known_weights(side, side, 12, torch.device("cpu"))
    assert _known_weights(16, 16, 12, torch.device("cpu")) is first
    assert not first.is_inference(), "a gradient may be computed with them"


def test_images_of_the_size_asked_for_are_left_alone():
    images = byte_images(2)
    assert shrink(images, (16, 16)) is images


@pytest.mark.parametrize("name", [name for name in list_transforms() if TRANSFORMS[name].exact])
def test_an_exact_transform_gives_the_bytes_that_arithmetic_gives(name):
    images = byte_images(4)
    (copy,) = make_copies(name, images)
    (computed,) = TRANSFORMS[name].pixels(images.double() / 255, None)
    assert torch.equal(copy.images, as_bytes(computed))
