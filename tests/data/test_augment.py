import dataclasses
import math

import pytest
import torch
import torchvision.transforms.functional as TF
from torchvision.transforms import RandomResizedCrop

from sourceward._util.errors import InputError
from sourceward.data.augment import Augmentation, augment, draw_boxes
from sourceward.data.image_ops import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    crop_and_hflip,
    grayscale,
    mix_amplitude,
    rotate,
    sketch,
)
from sourceward.nn.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD, normalize

NO_AUGMENTATION = Augmentation(
    scale=(1.0, 1.0), ratio=(1.0, 1.0), hflip=0, brightness=0, contrast=0, saturation=0, hue=0, grayscale=0
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(batch: int = 4, height: int = 24, width: int = 24) -> torch.Tensor:
    return torch.randint(256, (batch, 3, height, width), dtype=torch.uint8, generator=seeded(7))


def only(**settings) -> Augmentation:
    return dataclasses.replace(NO_AUGMENTATION, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_augmentation_is_normalization(dtype):
    clean = images(height=20)
    out = augment(clean, NO_AUGMENTATION, dtype=dtype)
    assert out.dtype == dtype
    assert torch.equal(out, normalize(clean, dtype=dtype))


def test_normalize_agrees_with_torchvision():
    clean = images()
    expected = TF.normalize(clean.float() / 255, IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(normalize(clean), expected)
    torch.testing.assert_close(normalize(clean.float() / 255), expected)


def test_hflip_is_exact():
    clean = images(batch=64)
    out = augment(clean, only(hflip=0.5), generator=seeded(), mean=(0, 0, 0), std=(1, 1, 1)) * 255
    same = (out - clean).abs().amax(dim=(1, 2, 3)) < 0.01
    mirrored = (out - clean.flip(3)).abs().amax(dim=(1, 2, 3)) < 0.01
    assert (same ^ mirrored).all()
    assert 16 < mirrored.sum() < 48  # 32 +- 4 standard deviations


def test_crop_on_whole_pixels_is_a_slice():
    clean = images(batch=2).float()
    boxes = torch.tensor([[3.0, 5.0, 8.0, 12.0], [16.0, 0.0, 8.0, 12.0]])
    out = crop_and_hflip(clean, boxes, torch.tensor([False, True]), (8, 12))
    torch.testing.assert_close(out[0], clean[0, :, 3:11, 5:17], atol=0.01, rtol=0)
    torch.testing.assert_close(out[1], clean[1, :, 16:24, 0:12].flip(2), atol=0.01, rtol=0)


def test_crop_is_enlarged_bilinearly():
    ramp = torch.tensor([0.0, 4.0, 8.0, 12.0]).expand(1, 3, 4, 4)
    out = crop_and_hflip(ramp, torch.tensor([[0.0, 1.0, 4.0, 2.0]]), torch.tensor([False]), (4, 4))
    # Four samples across pixels 1 and 2, at 0.75, 1.25, 1.75 and 2.25.
    torch.testing.assert_close(out[0, 0, 0], torch.tensor([3.0, 5.0, 7.0, 9.0]))


@pytest.mark.parametrize("shape", [(24, 24), (20, 36), (36, 20), (8, 64)])
def test_crops_lie_inside_the_image_and_within_scale_and_ratio(shape):
    height, width = shape
    settings = Augmentation(scale=(0.3, 0.6))
    top, left, tall, wide = draw_boxes(images(500, *shape), settings, seeded()).unbind(1)
    slack = 1e-4
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= height + slack).all()
    assert (left + wide <= width + slack).all()
    ratio = wide / tall
    assert (ratio >= 3 / 4 - slack).all()
    assert (ratio <= 4 / 3 + slack).all()
    if shape != (8, 64):  # so long that no crop of this share fits: the largest one is taken
        share = tall * wide / (height * width)
        assert (share >= 0.3 - slack).all()
        assert (share <= 0.6 + slack).all()


def test_boxes_are_distributed_as_torchvision():
    draws = 2000
    image = images(1, 200, 200)
    torch.manual_seed(0)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, [0.8, 1.0], [3 / 4, 4 / 3]) for _ in range(draws)]
    )
    ours = draw_boxes(image.expand(draws, -1, -1, -1), Augmentation(), seeded())
    error = ((theirs.float().var(0) + ours.var(0)) / draws).sqrt()
    # Four standard errors, and half a pixel since theirs are whole.
    assert ((theirs.float().mean(0) - ours.mean(0)).abs() < 4 * error + 0.5).all()


@pytest.mark.parametrize(
    ("ours", "theirs", "values"),
    [
        (adjust_brightness, TF.adjust_brightness, (0.6, 1.0, 1.4)),
        (adjust_contrast, TF.adjust_contrast, (0.6, 1.0, 1.4)),
        (adjust_saturation, TF.adjust_saturation, (0.0, 1.0, 1.4)),
        (adjust_hue, TF.adjust_hue, (-0.4, 0.0, 0.5)),
    ],
)
def test_colour_agrees_with_torchvision(ours, theirs, values):
    pixels = images(len(values)).float() / 255
    pixels[:, :, 0] = pixels[:, :1, 0]  # gray pixels have no hue
    out = ours(pixels, torch.tensor(values))
    expected = torch.stack([theirs(row, value) for row, value in zip(pixels, values)])
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


def test_grayscale_agrees_with_torchvision():
    pixels = images().float() / 255
    torch.testing.assert_close(grayscale(pixels), TF.rgb_to_grayscale(pixels))
    out = augment(images(), only(grayscale=1), generator=seeded(), mean=(0, 0, 0), std=(1, 1, 1))
    torch.testing.assert_close(out, grayscale(pixels).expand_as(pixels))


def test_reproducible_by_generator():
    clean = images()
    first = augment(clean, Augmentation(), generator=seeded(), size=16)
    assert first.shape == (4, 3, 16, 16)
    assert first.isfinite().all()
    assert torch.equal(first, augment(clean, Augmentation(), generator=seeded(), size=16))
    assert not torch.equal(first, augment(clean, Augmentation(), generator=seeded(1), size=16))


@pytest.mark.parametrize(
    "settings",
    [
        only(scale=(0.8, 1.0), ratio=(3 / 4, 4 / 3)), only(brightness=0.4), only(contrast=0.4),
        only(saturation=0.4), only(hue=0.4), Augmentation(),
    ],
)  # fmt: skip
def test_each_sample_draws_its_own_parameters(settings):
    rows = augment(images(1).expand(6, -1, -1, -1), settings, generator=seeded())
    assert len({row.numpy().tobytes() for row in rows}) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": (0.0, 1.0)}, "Expected `scale` to be .*, above 0 and at most 1, but got \\(0.0, 1.0\\)"),
        ({"scale": (1.0, 0.8)}, "Expected `scale` to be .smallest, largest., above 0"),
        ({"scale": 0.8}, "Expected `scale` to be two numbers"),
        ({"ratio": (-1.0, 1.0)}, "Expected `ratio`"),
        ({"hflip": 1.5}, "Expected `hflip` to be from 0 to 1, but got 1.5. Use 0"),
        ({"hue": 0.6}, "Expected `hue` to be from 0 to 0.5"),
        ({"contrast": float("nan")}, "Expected `contrast`"),
        ({"grayscale": True}, "but got True"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(InputError, match=message):
        Augmentation(**settings)


def test_input_is_checked():
    with pytest.raises(InputError, match=r"uint8 .* got torch.float32"):
        augment(images().float(), NO_AUGMENTATION)
    with pytest.raises(InputError, match="Expected `size` to be 1 pixel or more, but got 0"):
        augment(images(), NO_AUGMENTATION, size=0)
    with pytest.raises(InputError, match="a positive std for each of 3 channels"):
        normalize(images(), std=(1, 1, 0))


def test_amplitudes_are_mixed_and_phases_stay():
    clean = images(batch=3).float() / 255
    other, share = torch.tensor([1, 2, 0]), torch.tensor([0.0, 0.5, 1.0])
    mixed = mix_amplitude(clean, other, share)
    torch.testing.assert_close(mixed[0], clean[0], atol=1e-6, rtol=0)
    before, after = torch.fft.fft2(clean), torch.fft.fft2(mixed)
    expected = before.abs().lerp(before[other].abs(), share[:, None, None, None])
    torch.testing.assert_close(after.abs(), expected, atol=1e-3, rtol=1e-4)
    shift = (after * before.conj()).angle().abs() * (before.abs() > 0.1)  # tiny amplitudes have no phase
    assert shift.max() < 1e-3


def test_rotation_is_about_the_centre_by_an_angle_per_image():
    clean = images(batch=3, height=8, width=8).float()
    out = rotate(clean, torch.tensor([0.0, 90.0, -90.0]))
    torch.testing.assert_close(out[0], clean[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(out[1], clean[1].rot90(1, (1, 2)), atol=1e-2, rtol=0)
    torch.testing.assert_close(out[2], clean[2].rot90(-1, (1, 2)), atol=1e-2, rtol=0)
    wide = torch.zeros(1, 3, 5, 9)
    wide[..., 2, 4:7] = 1  # a bar from the middle to the right
    assert rotate(wide, torch.tensor([90.0]))[0, 0, :3, 4].round().tolist() == [1, 1, 1], "length preserved"


def test_random_rotation_stays_within_its_range():
    clean = torch.zeros(64, 3, 33, 33, dtype=torch.uint8)
    clean[:, :, 16, 16:] = 255  # a line from the centre to the right
    out = augment(clean, only(rotate=20), generator=seeded(), mean=(0, 0, 0), std=(1, 1, 1))
    tip = out[:, 0, :, 30].argmax(1) - 16
    limit = 14 * math.tan(math.radians(20))
    assert limit - 2 < tip.abs().max() <= limit + 1
    assert (tip > 0).any()
    assert (tip < 0).any()


@pytest.mark.parametrize("off", [{"fourier": 1.0, "fourier_strength": 0.0}, {"fourier": 0.0}])
def test_fourier_mixing_can_be_switched_off(off):
    clean = images()
    assert torch.equal(augment(clean, only(**off), generator=seeded()), normalize(clean))


def test_fourier_mixing_changes_a_random_choice_of_images_and_stays_in_range():
    clean = images(batch=64)
    out = augment(clean, only(fourier=0.5), generator=seeded())
    same = (out == normalize(clean)).flatten(1).all(1)
    assert 16 < same.sum() < 48
    low, high = ((torch.tensor(v) - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD) for v in (0, 1))
    assert (out.amax((0, 2, 3)) <= high + 1e-5).all()
    assert (out.amin((0, 2, 3)) >= low - 1e-5).all()


def test_fourier_mixing_leaves_a_batch_of_one_unchanged():
    clean = images(batch=1)
    out = augment(clean, only(fourier=1.0), generator=seeded())
    torch.testing.assert_close(out, normalize(clean), atol=1e-4, rtol=0)


def test_sketch_draws_dark_lines_on_white():
    halves = torch.full((1, 3, 150, 150), 0.8)
    halves[..., :75] = 0.2  # a dark left half, like a shadow
    drawn = sketch(halves, torch.ones(1))
    assert torch.equal(drawn[:, 0], drawn[:, 2])
    torch.testing.assert_close(drawn[..., :60], torch.ones(1, 3, 150, 60))  # uniform areas become white
    torch.testing.assert_close(drawn[..., 75:], torch.ones(1, 3, 150, 75))
    assert drawn[..., 74].max() < 0.5  # a line on the dark side of the edge
    assert torch.all(sketch(halves, torch.full((1,), 4.0)) <= drawn)


@pytest.mark.parametrize("side", [8, 16, 32, 224])
def test_sketch_draws_lines_at_every_image_size(side):
    shape = torch.full((1, 3, side, side), 0.9)
    shape[..., side // 4 : side // 2, side // 4 : -side // 4] = 0.2
    drawn = sketch(shape, torch.ones(1))
    assert drawn.min() < 0.5
    assert drawn.max() == 1


def test_sketch_does_not_depend_on_brightness():
    photo = images(2, 90, 90).float().div(255) + 0.5
    torch.testing.assert_close(
        sketch(photo, torch.ones(2)), sketch(5 * photo, torch.ones(2)), atol=0.03, rtol=0
    )


def test_sketch_changes_a_random_choice_of_images():
    clean = images(64)
    out = augment(clean, only(sketch=0.5), generator=seeded(), mean=(0, 0, 0), std=(1, 1, 1)) * 255
    kept = (out - clean).abs().amax(dim=(1, 2, 3)) < 0.01
    assert 16 < kept.sum() < 48
    assert (out[~kept].std(dim=1) < 1e-3).all()  # sketches are gray
    assert 0 <= out.min() <= out.max() <= 255
