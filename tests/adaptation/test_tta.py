"""Views: the mean answer over the image and other looks at it."""

import numpy as np
import pytest
import torch

from sourceward import create_adapter
from sourceward._util.errors import InputError
from sourceward.adaptation import Unsuitable
from sourceward.adaptation.images import image_preprocessing
from sourceward.data.augment import normalise
from sourceward.data.augmix import pixels
from sourceward.data.transforms import VIEWS, as_bytes, look, look_normalised, mean_amplitude
from sourceward.nn.feature_statistics import FeatureStatistics
from tests.adaptation.test_adapters import make_generator, make_image_network


def make_images(rows):
    """Bytes, as `make_image_network` takes them."""
    half = (0.5, 0.5, 0.5)
    return normalise(byte_images(rows), half, half)


def plain(network, images):
    return create_adapter("none")(network, network.features(images))


def test_the_answer_is_the_mean_over_the_views():
    network, images = make_image_network(), make_images(5)
    found = create_adapter("views", of="flip")(network, images)
    one, other = plain(network, images), plain(network, images.flip(-1))
    np.testing.assert_allclose(found.probabilities, (one.probabilities + other.probabilities) / 2, atol=1e-5)
    np.testing.assert_allclose(found.per_source, (one.per_source + other.per_source) / 2, atol=1e-5)
    assert set(found.status) == {"adapted"}


def test_a_mirrored_image_has_the_same_answer():
    network, images = make_image_network(), make_images(3)
    adapter = create_adapter("views", of="flip")
    there, back = (adapter(network, x).probabilities for x in (images, images.flip(-1)))
    np.testing.assert_allclose(there, back, atol=1e-5)


def test_a_view_of_styles_is_one_voice():
    """Toward each source once; their mean counts as much as the image."""
    network, images = make_image_network(), make_images(4)
    with pytest.raises(Unsuitable, match="no styles"):
        create_adapter("views", of="style")(network, images)
    network.amplitudes = torch.stack([mean_amplitude([x[None]]) for x in byte_images(network.sources)])
    found = create_adapter("views", of="style")(network, images).probabilities
    looks = image_preprocessing(network)
    sources = []
    for style in network.amplitudes:
        spectrum = torch.fft.rfft2(pixels(images, looks.mean, looks.std))
        half = torch.polar((spectrum.abs() + style) / 2, spectrum.angle())
        there = as_bytes(torch.fft.irfft2(half, s=images.shape[-2:]).clamp(0, 1))
        sources.append(plain(network, normalise(there, looks.mean, looks.std)).probabilities)
    expected = (plain(network, images).probabilities + np.mean(sources, axis=0)) / 2
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_view_of_moments_is_one_voice():
    network, images = make_image_network(), make_images(4)
    with pytest.raises(Unsuitable, match="no feature_statistics"):
        create_adapter("views", of="adain")(network, images)
    network.feature_statistics = FeatureStatistics({"network.5": torch.rand(network.sources, 2, 16) + 0.5})
    found = create_adapter("views", of="adain")(network, images).probabilities
    sources = []
    for source in range(network.sources):
        with network.toward(source):
            sources.append(plain(network, images).probabilities)
    expected = (plain(network, images).probabilities + np.mean(sources, axis=0)) / 2
    np.testing.assert_allclose(found, expected, atol=1e-5)


def byte_images(rows):
    return torch.randint(256, (rows, 3, 16, 16), dtype=torch.uint8, generator=make_generator(8))


@pytest.mark.parametrize("name", VIEWS)
def test_normalised_images_are_looked_at_as_bytes(name):
    images, mean, std = byte_images(3), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    for one, other in zip(
        look(images, VIEWS[name]),
        look_normalised(normalise(images, mean, std), VIEWS[name], mean, std),
        strict=True,
    ):
        assert torch.equal(normalise(one, mean, std), other)


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_pictures(name):
    images = torch.rand(2, 3, 32, 24)
    pictures = VIEWS[name](images)
    assert len(pictures) == (4 if name == "turn" else 1)
    for picture in pictures:
        assert picture.shape == images.shape
        assert bool(((picture >= 0) & (picture <= 1)).all())
        assert not torch.equal(picture, images)


def test_gray_has_no_colour():
    red, green, blue = VIEWS["gray"](torch.rand(1, 3, 4, 4))[0].unbind(1)
    assert torch.equal(red, green)
    assert torch.equal(green, blue)


@pytest.mark.parametrize(("of", "word"), [("flop", "flip"), ("flip+flip", "once")])
def test_wrong_views_are_refused(of, word):
    with pytest.raises(InputError, match=word):
        create_adapter("views", of=of)
