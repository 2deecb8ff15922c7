"""AugMix on the device: operations against PIL, mixtures against their definition."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from sourceward.data import augmix as module
from sourceward.data.augmix import affine, augmix, autocontrast, equalize, posterize, solarize
from tests.helpers import make_generator


def pixels(rows: int = 4, side: int = 24) -> torch.Tensor:
    """Random but not flat in tone: (rows, 3, side, side) in [0, 1], whole levels."""
    level = torch.rand(rows, 3, side, side, generator=make_generator()) ** 2 * 200 + 20
    return level.round() / 255


def as_pil(image: torch.Tensor) -> Image.Image:
    return Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    ("ours", "theirs", "slack"),
    [
        (autocontrast, ImageOps.autocontrast, 1.0),
        (equalize, ImageOps.equalize, 0.01),
        (lambda x: posterize(x, torch.full((len(x),), 2.6)), lambda i: ImageOps.posterize(i, 3), 0.01),
        (lambda x: solarize(x, torch.full((len(x),), 5.0)), lambda i: ImageOps.solarize(i, 128), 0.01),
    ],
)
def test_tones_as_pil_makes_them(ours, theirs, slack):
    images = pixels()
    for image, result in zip(images, ours(images)):
        expected = np.asarray(theirs(as_pil(image))).transpose(2, 0, 1)
        assert np.abs((result * 255).numpy() - expected).max() <= slack


def test_a_flat_image_stays():
    flat = torch.full((1, 3, 8, 8), 0.5)
    assert torch.equal(autocontrast(flat), flat)
    assert torch.equal(equalize(flat), flat)


def test_geometry_goes_the_right_distance():
    image = torch.zeros(1, 3, 30, 30)
    image[..., 15, 15] = 1.0
    level = torch.tensor([3.0])  # a tenth of the side, three pixels
    across = affine(image, torch.tensor([3]), level)
    assert across[0, 0].nonzero().tolist() == [[15, 12]]
    down = affine(image, torch.tensor([4]), level)
    assert down[0, 0].nonzero().tolist() == [[12, 15]]
    still = affine(image, torch.tensor([-1]), level)
    torch.testing.assert_close(still, image)
    # A rotation by level x 3 degrees turns the horizontal edge of a half-plane by that angle.
    half = torch.zeros(1, 3, 101, 101)
    half[..., 51:, :] = 1.0
    turned = affine(half, torch.tensor([0]), torch.tensor([5.0]))[0, 0]
    edge = (turned > 0.5).int().argmax(0)[[30, 70]]
    slope = np.degrees(np.arctan((edge[1] - edge[0]).abs().item() / 40))
    assert slope == pytest.approx(15, abs=2)


def test_augmix_is_a_convex_mixture_and_each_sample_draws_its_own(monkeypatch):
    images = pixels(6)
    view = augmix(images, generator=make_generator(1))
    assert torch.equal(view, augmix(images, generator=make_generator(1)))
    assert not torch.equal(view, augmix(images, generator=make_generator(2)))
    same = augmix(images[:1].expand(6, -1, -1, -1), generator=make_generator(1))
    assert len({tuple(x.flatten().tolist()) for x in same}) == 6
    # With chains that change nothing the weights must add up to the image.
    monkeypatch.setattr(module, "random_operation", lambda images, severity, generator: images)
    torch.testing.assert_close(augmix(images, generator=make_generator(1)), images)
    # With chains that blacken, what remains is 1 - m, uniform over samples.
    monkeypatch.setattr(module, "random_operation", lambda images, severity, generator: images * 0)
    left = augmix(torch.ones(2000, 3, 1, 1), generator=make_generator(1))[:, 0, 0, 0]
    assert left.mean().item() == pytest.approx(0.5, abs=4 * 12**-0.5 / 2000**0.5)
    assert left.var().item() == pytest.approx(1 / 12, rel=0.1)
