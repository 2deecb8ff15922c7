import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images

from sourceward._util.errors import InputError
from sourceward.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    RECIPES,
    TEST_CORRUPTIONS,
    blur,
    corrupt,
    digital,
    noise,
    spatter,
    weather,
)
from sourceward.data.corruptions._core import streak

DETERMINISTIC = (
    "defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "saturate", "pixelate",
    "jpeg_compression",
)  # fmt: skip
RANDOM = [name for name in CORRUPTIONS if name not in DETERMINISTIC]
KEEPS_A_FLAT_IMAGE = (
    "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur", "contrast", "elastic_transform", "pixelate",
    "jpeg_compression",
)  # fmt: skip
SEVERITIES = (1, 2, 3, 4, 5)


def photos(size: int, count: int = 2) -> torch.Tensor:
    """Crops of the two photographs that scikit-learn ships, (count, 3, size, size)."""
    crops = [
        image[100 : 100 + 2 * size : 2, 200 : 200 + 2 * size : 2] for image in load_sample_images().images
    ]
    return torch.from_numpy(np.stack(crops[:count])).permute(0, 3, 1, 2).contiguous()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distance(images: torch.Tensor, clean: torch.Tensor) -> float:
    return (images.float() - clean.float()).abs().mean().item()


def test_registry_holds_the_nineteen():
    assert len(TEST_CORRUPTIONS) == 15
    assert len(EXTRA_CORRUPTIONS) == 4
    assert {*TEST_CORRUPTIONS, *EXTRA_CORRUPTIONS} == set(CORRUPTIONS)
    assert all(len(CORRUPTIONS[name].levels[recipe]) == 5 for name in CORRUPTIONS for recipe in RECIPES)


@pytest.mark.parametrize("name", list(CORRUPTIONS))
@pytest.mark.parametrize("recipe", RECIPES)
def test_contract(name, recipe):
    clean = photos(48)[:, :, :40]
    before = clean.clone()
    first = corrupt(clean, name, 5, generator=seeded(), recipe=recipe)
    assert first.shape == clean.shape
    assert first.dtype == torch.uint8
    assert torch.equal(clean, before)
    assert torch.equal(first, corrupt(clean, name, 5, generator=seeded(), recipe=recipe))
    other = corrupt(clean, name, 5, generator=seeded(1), recipe=recipe)
    assert torch.equal(first, other) == (name in DETERMINISTIC)
    assert corrupt(clean[:0], name).shape == (0, 3, 40, 48)


# Two of the authors' CIFAR scales do not rise: saturation is first taken away and then added, and the mildest
# elastic level has the strongest affine map.
@pytest.mark.parametrize("name", list(CORRUPTIONS))
@pytest.mark.parametrize("recipe", RECIPES)
def test_severe_is_farther_from_clean_than_mild(name, recipe):
    if recipe == "cifar" and name in ("saturate", "elastic_transform"):
        pytest.skip("by the authors' levels the mildest is not the nearest")
    clean = photos(64)
    mild, severe = (
        distance(corrupt(clean, name, s, generator=seeded(), recipe=recipe), clean) for s in (1, 5)
    )
    assert 0 < mild < severe


# The others trade one setting for another on the way: water for mud, cover for weight, size for number.
@pytest.mark.parametrize(
    "name",
    [
        "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "defocus_blur", "motion_blur",
        "zoom_blur", "gaussian_blur", "brightness", "contrast", "pixelate", "jpeg_compression",
    ],
)  # fmt: skip
@pytest.mark.parametrize("recipe", RECIPES)
def test_distance_rises_with_severity(name, recipe):
    clean = photos(64)
    distances = [
        distance(corrupt(clean, name, s, generator=seeded(), recipe=recipe), clean) for s in SEVERITIES
    ]
    assert distances == sorted(distances)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_row_does_not_depend_on_the_batch(name):
    clean = photos(72)
    together = corrupt(clean, name, 3)
    assert torch.equal(together, torch.cat([corrupt(row[None], name, 3) for row in clean]))
    assert torch.equal(together.flip(0), corrupt(clean.flip(0), name, 3))


@pytest.mark.parametrize("name", RANDOM)
def test_each_row_draws_its_own(name):
    twice = photos(64, 1).expand(2, -1, -1, -1)
    first, second = corrupt(twice, name, 3, generator=seeded())
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", KEEPS_A_FLAT_IMAGE)
def test_a_flat_image_stays_flat(name):
    flat = torch.full((1, 3, 96, 96), 128, dtype=torch.uint8)
    assert (corrupt(flat, name, 3, generator=seeded()).int() - 128).abs().max() <= 1


def test_recipe_follows_the_size():
    for size, recipe in ((64, "cifar"), (65, "imagenet")):
        clean = photos(size)
        assert torch.equal(corrupt(clean, "contrast", 2), corrupt(clean, "contrast", 2, recipe=recipe))


def pixels(*rgb: tuple[int, int, int]) -> torch.Tensor:
    """A 32 pixel image whose rows repeat the given colours."""
    rows = torch.tensor(rgb, dtype=torch.uint8).repeat(32 // len(rgb), 1)
    return rows.T[None, :, :, None].expand(1, 3, 32, 32)


def test_brightness_by_hand():
    # V of (100, 50, 0) is 100; 10 % of 255 makes 125.5, so all channels grow by 1.255. Black gains 25.5.
    out = corrupt(pixels((100, 50, 0), (0, 0, 0)), "brightness", 1, recipe="imagenet")
    assert out[0, :, 0, 0].tolist() == [125, 62, 0]
    assert out[0, :, 1, 0].tolist() == [25, 25, 25]


def test_saturate_by_hand():
    # S of (200, 100, 100) is 0.5; doubled it is 1. Of gray nothing changes.
    out = corrupt(pixels((200, 100, 100), (90, 90, 90)), "saturate", 3, recipe="imagenet")
    assert out[0, :, 0, 0].tolist() == [200, 0, 0]
    assert out[0, :, 1, 0].tolist() == [90, 90, 90]


def test_contrast_by_hand():
    # The mean of 0 and 200 is 100; 40 % of the way out from it: 60 and 140.
    out = corrupt(pixels((0, 7, 200), (200, 7, 0)), "contrast", 1, recipe="imagenet")
    assert out[0, :, 0, 0].tolist() == [60, 7, 140]
    assert out[0, :, 1, 0].tolist() == [140, 7, 60]


def test_pixelate_by_hand():
    # Half the size: each cell of 2 x 2 becomes its mean, (10 + 21) / 2 rounded up.
    out = corrupt(pixels((10, 0, 0), (21, 0, 4)), "pixelate", 2, recipe="imagenet")
    assert out[0, :, :2, 5].T.tolist() == [[16, 0, 2]] * 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gaussian_noise", 0.08), ("speckle_noise", 0.15 * 128 / 255), ("shot_noise", (128 / 255 / 60) ** 0.5)],
)
def test_noise_has_the_stated_spread(name, expected):
    count = 3 * 128 * 128
    clean = torch.full((1, 3, 128, 128), 128, dtype=torch.uint8)
    change = (corrupt(clean, name, 1, generator=seeded()).float() - 128) / 255
    # Truncation takes half a level off the mean. The error of a standard deviation is std / sqrt(2 n).
    assert change.mean().item() == pytest.approx(-0.5 / 255, abs=4 * expected / count**0.5 + 0.1 / 255)
    assert change.std().item() == pytest.approx(expected, rel=4 / (2 * count) ** 0.5 + 0.005)


def test_impulses_are_as_many_as_stated():
    clean = torch.full((1, 3, 128, 128), 128, dtype=torch.uint8)
    out = corrupt(clean, "impulse_noise", 5, generator=seeded())
    for value in (0, 255):
        share, count = 0.27 / 2, out.numel()
        assert (out == value).sum().item() / count == pytest.approx(share, abs=4 * (share / count) ** 0.5)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_equals_the_sequential_walk(reach):
    height, width = 20, 24
    moves = torch.randint(-reach, reach, (2, 2, height, width), generator=seeded())
    walked = torch.arange(height * width).repeat(2, 1).view(2, height, width)
    for image, move in zip(walked, moves):
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = move[:, row, column].tolist()
                image[row, column] = image[row + down, column + right].clone()
    assert torch.equal(blur.copied_from(moves, reach), walked.flatten(1))


def test_distance_is_euclidean():
    marks = torch.zeros(1, 1, 30, 40, dtype=torch.bool)
    marks[0, 0, 5, 8] = marks[0, 0, 22, 30] = True
    rows, columns = torch.meshgrid(torch.arange(30.0), torch.arange(40.0), indexing="ij")
    expected = torch.minimum((rows - 5).hypot(columns - 8), (rows - 22).hypot(columns - 30)).clamp(max=20)
    torch.testing.assert_close(spatter.distance(marks)[0, 0], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(1, 3, 32, 32)}, "Expected `images` to be uint8 .* got torch.float32"),
        ({"images": torch.zeros(1, 1, 32, 32, dtype=torch.uint8)}, "repeat a gray channel"),
        ({"images": torch.zeros(1, 3, 31, 64, dtype=torch.uint8)}, "32 pixels or more .* got \\(31, 64\\)"),
        ({"severity": 0}, "Expected `severity` to be 1, 2, 3, 4 or 5, but got 0"),
        ({"severity": True}, "but got True"),
        ({"name": "fogg"}, "Unknown corruption 'fogg'. Did you mean 'fog'"),
        ({"recipe": "cifar10"}, "Unknown recipe 'cifar10'. Did you mean 'cifar'"),
        ({"images": torch.zeros(1, 3, 32, 32, dtype=torch.uint8, device="meta")}, "`generator` on meta"),
    ],
)
def test_errors_say_what_to_do(change, message):
    arguments = {"images": photos(32), "name": "fog", "severity": 1, "generator": seeded()} | change
    with pytest.raises(InputError, match=message):
        corrupt(**arguments)


# From here on: agreement with an independent implementation, where it is installed.


@pytest.fixture
def reference(monkeypatch):
    """`imagecorruptions.corrupt` on one image (3, height, width), mended for NumPy 2 and scikit-image."""
    package = pytest.importorskip(
        "imagecorruptions",
        reason="imagecorruptions and setuptools < 81 are not installed",
        exc_type=ImportError,
    )
    from skimage.filters import gaussian

    def with_multichannel(image, *args, multichannel=False, **kwargs):  # removed from scikit-image 0.23
        return gaussian(image, *args, channel_axis=-1 if multichannel else None, **kwargs)

    monkeypatch.setattr(package.corruptions, "gaussian", with_multichannel)
    monkeypatch.setattr(np, "float_", np.float64, raising=False)  # removed from NumPy 2; fog needs it

    def apply(image, name, severity):
        out = package.corrupt(image.permute(1, 2, 0).numpy(), severity, name)
        return torch.from_numpy(out.copy()).permute(2, 0, 1)

    apply.module = package.corruptions
    return apply


def assert_same_pixels(ours, theirs, beyond=0.0):
    """Within one level, the most that truncating float32 where they truncate float64 can do."""
    difference = (ours.int() - theirs.int()).abs()
    assert (difference > 1).float().mean().item() <= beyond, f"largest difference {difference.max()}"


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_agrees_with_reference(reference, name, severity):
    clean = photos(128)
    for ours, image in zip(corrupt(clean, name, severity), clean):
        assert_same_pixels(ours, reference(image, name, severity))


@pytest.fixture
def same_draws(monkeypatch):
    """Both implementations read the same random numbers: ours are taken from `numpy.random` too."""

    def in_their_order(shape):
        if len(shape) == 4 and shape[1] == 3:  # they keep channels last
            return (*shape[2:], 3), lambda draws: draws.permute(2, 0, 1)[None]
        return shape, lambda draws: draws

    def normal(shape, like, generator):
        size, back = in_their_order(shape)
        return back(torch.from_numpy(np.random.normal(size=size)).float())  # noqa: NPY002

    def uniform(shape, low, high, like, generator):
        size, back = in_their_order(shape)
        return back(torch.from_numpy(np.random.uniform(low, high, size=size)).float())  # noqa: NPY002

    for module in (blur, digital, noise, spatter, weather):
        for function in (normal, uniform):
            if hasattr(module, function.__name__):
                monkeypatch.setattr(module, function.__name__, function)
    return lambda: np.random.seed(3)  # noqa: NPY002


# Spatter: the reference measures distance in steps of a 5 x 5 mask, up to 2 % off, which shifts its drops.
@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("gaussian_noise", 0),
        ("speckle_noise", 0),
        ("motion_blur", 0),
        ("fog", 0),
        ("elastic_transform", 0),
        ("spatter", 0.05),
    ],
)
def test_random_agrees_with_reference_given_the_same_draws(reference, same_draws, name, severity, beyond):
    clean = photos(128, 1)
    same_draws()
    theirs = reference(clean[0], name, severity)
    same_draws()
    assert_same_pixels(corrupt(clean, name, severity)[0], theirs, beyond)


@pytest.mark.parametrize("angle", [-135.0, -70.0, -20.0, 0.0, 33.0])
def test_streak_agrees_with_reference(reference, angle):
    image = photos(96, 1).float()
    theirs = reference.module._motion_blur(image[0].permute(1, 2, 0).numpy(), radius=12, sigma=8, angle=angle)
    ours = streak(image, torch.tensor([angle]), 12, 8)[0].permute(1, 2, 0)
    torch.testing.assert_close(ours, torch.from_numpy(theirs).float(), atol=0.01, rtol=0)


def statistics(images, clean):
    """Per image: mean and spread of the change, and the spread of its horizontal and vertical differences."""
    change = images.double() - clean.double()
    across, down = change.diff(dim=-1), change.diff(dim=-2)
    return torch.stack([change.mean((1, 2, 3)), *(x.std((1, 2, 3)) for x in (change, across, down))])


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", ["shot_noise", "impulse_noise", "glass_blur", "snow", "frost"])
def test_random_agrees_with_reference_in_distribution(reference, name, severity):
    draws = 6 if name == "glass_blur" else 24  # the reference takes its time over glass
    clean = photos(80 if name == "glass_blur" else 128, 1)
    np.random.seed(0)  # noqa: NPY002
    theirs = statistics(torch.stack([reference(clean[0], name, severity) for _ in range(draws)]), clean)
    ours = statistics(corrupt(clean.expand(draws, -1, -1, -1), name, severity, generator=seeded()), clean)
    error = ((theirs.var(dim=1) + ours.var(dim=1)) / draws).sqrt()
    # Four standard errors, and a fifth of a level for rounding. Of frost only tone and contrast are alike.
    compared = slice(2) if name == "frost" else slice(4)
    excess = (theirs.mean(dim=1) - ours.mean(dim=1)).abs() - 4 * error - 0.2
    assert (excess[compared] < 0).all(), (
        f"theirs {theirs.mean(dim=1)}, ours {ours.mean(dim=1)}, error {error}"
    )
