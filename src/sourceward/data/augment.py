"""Training augmentation, batched on the device: every sample draws its own parameters.

The order is fixed: crop and flip, rotation, brightness, contrast, saturation, hue, grayscale, sketch, Fourier
amplitude mixing. (torchvision shuffles the colour operations; a fixed order lets the whole batch share each
of them.) No operation makes the host wait for the device.

The operations are in image_ops.py, which says what is taken from torchvision and what is not, and why.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from sourceward._util.errors import InputError
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

Generator = torch.Generator | None


@dataclass(frozen=True)
class Augmentation:
    """Ranges and probabilities of training augmentation. Defaults: JiGen (Carlucci et al., CVPR 2019).

    (DomainBed uses scale 0.7 to 1 and 0.3 for each colour.)

    Args:
        scale: smallest and largest fraction of the image's area that a crop keeps; (1, 1) does not crop.
        ratio: smallest and largest width / height of a crop, before it is resized.
        hflip: probability of a horizontal flip.
        rotate: largest rotation in degrees, in either direction.
        brightness, contrast, saturation: each is multiplied by a factor from 1 - value to 1 + value.
        hue: largest shift as a fraction of the colour circle, at most 0.5.
        grayscale: probability of conversion to grayscale.
        sketch: probability of conversion to dark lines on white (luma divided by its local mean).
        fourier: probability of Fourier amplitude mixing with another image of the batch; the phase spectrum,
            which carries the shapes, stays (Xu et al., CVPR 2021).
        fourier_strength: the mixed-in share of the amplitude is drawn from 0 to this.
    """

    scale: tuple[float, float] = (0.8, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    hflip: float = 0.5
    rotate: float = 0.0
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.4
    grayscale: float = 0.1
    sketch: float = 0.0
    fourier: float = 0.0
    fourier_strength: float = 1.0

    def __post_init__(self) -> None:
        for name, high in (("scale", 1.0), ("ratio", math.inf)):
            pair = getattr(self, name)
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(_is_number(x) for x in pair)):
                raise InputError(
                    f"Expected `{name}` to be two numbers (smallest, largest), but got {pair!r}."
                )
            if not 0 < pair[0] <= pair[1] <= high:
                raise InputError(
                    f"Expected `{name}` to be (smallest, largest), above 0 and at most {high:g}, "
                    f"but got {pair!r}. Use (1.0, 1.0) to switch it off."
                )
        for field in fields(self)[2:]:
            value, high = getattr(self, field.name), {"hue": 0.5, "rotate": 180}.get(field.name, 1.0)
            if not (_is_number(value) and 0 <= value <= high):
                raise InputError(
                    f"Expected `{field.name}` to be from 0 to {high:g}, but got {value!r}. "
                    "Use 0 to switch it off."
                )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@torch.no_grad()
def augment(
    images: Tensor,
    settings: Augmentation,
    *,
    generator: Generator = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    size: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Augment and normalize a batch.

    Shapes: `images` uint8 (batch, 3, height, width); the result is (batch, 3, size, size) of `dtype` on the
    same device, or of the input's size without `size`. Interpolation is bilinear without antialiasing, so the
    images should be close to `size` already.

    >>> images = torch.randint(256, (4, 3, 40, 40), dtype=torch.uint8)
    >>> augment(images, Augmentation(), generator=torch.Generator().manual_seed(0), size=32).shape
    torch.Size([4, 3, 32, 32])
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"Expected `images` to be uint8 (batch, 3, height, width), but got {images.dtype} "
            f"{tuple(images.shape)}. Augment before normalizing; repeat a gray channel three times."
        )
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise InputError(
            f"Expected `size` to be 1 pixel or more, but got {size!r}. Omit it to keep the input's."
        )
    before = (images.shape[-2], images.shape[-1])
    after = before if size is None else (size, size)
    pixels = images.float() / 255
    if settings.scale != (1, 1) or settings.hflip or after != before:
        boxes = draw_boxes(pixels, settings, generator)
        pixels = crop_and_hflip(pixels, boxes, _chance(pixels, settings.hflip, generator), after)
    if settings.rotate:
        pixels = rotate(pixels, _uniform(pixels, -settings.rotate, settings.rotate, generator))
    for operation in (random_color, random_sketch, random_amplitude):
        pixels = operation(pixels, settings, generator)
    return normalize(pixels, mean, std, dtype)


def draw_boxes(images: Tensor, settings: Augmentation, generator: Generator) -> Tensor:
    """Draw one crop per image, (batch, 4) in pixels: top, left, height, width.

    As torchvision's RandomResizedCrop (ten tries, the first that fits, else the largest crop within `ratio`),
    but boxes are not rounded to whole pixels.
    """
    batch, _, height, width = images.shape
    if settings.scale == (1, 1):
        return torch.stack([_full(images, value) for value in (0, 0, height, width)], dim=1)
    area = _uniform(images, *settings.scale, generator, (batch, 10)) * height * width
    low, high = settings.ratio
    ratio = _uniform(images, math.log(low), math.log(high), generator, (batch, 10)).exp()
    widest = min(width, height * min(max(width / height, low), high))
    tallest = widest / min(max(width / height, low), high)
    wide = torch.cat([(area * ratio).sqrt(), _full(images, widest)[:, None]], dim=1)
    tall = torch.cat([(area / ratio).sqrt(), _full(images, tallest)[:, None]], dim=1)
    fits = (wide <= width) & (tall <= height)
    fits[:, -1] = True
    first = fits.int().argmax(dim=1, keepdim=True)
    wide, tall = wide.gather(1, first)[:, 0], tall.gather(1, first)[:, 0]
    corner = _uniform(images, 0, 1, generator, (2, batch))
    return torch.stack([corner[0] * (height - tall), corner[1] * (width - wide), tall, wide], dim=1)


def random_color(images: Tensor, settings: Augmentation, generator: Generator) -> Tensor:
    """Apply brightness, contrast, saturation, hue and grayscale; what is switched off draws no numbers."""
    for amount, adjust in (
        (settings.brightness, adjust_brightness),
        (settings.contrast, adjust_contrast),
        (settings.saturation, adjust_saturation),
    ):
        if amount:
            images = adjust(images, _uniform(images, 1 - amount, 1 + amount, generator))
    if settings.hue:
        images = adjust_hue(images, _uniform(images, -settings.hue, settings.hue, generator))
    if settings.grayscale:
        chosen = _chance(images, settings.grayscale, generator)[:, None, None, None]
        images = torch.where(chosen, grayscale(images), images)
    return images


def random_sketch(images: Tensor, settings: Augmentation, generator: Generator) -> Tensor:
    """Convert a random choice of the images to sketches, of strength 1 to 4."""
    if not settings.sketch:
        return images
    chosen = _chance(images, settings.sketch, generator)[:, None, None, None]
    return torch.where(chosen, sketch(images, _uniform(images, 1, 4, generator)), images)


def random_amplitude(images: Tensor, settings: Augmentation, generator: Generator) -> Tensor:
    """Mix the Fourier amplitudes of another image of the batch into a random choice of the images."""
    if not (settings.fourier and settings.fourier_strength):
        return images
    batch = len(images)
    chosen = _chance(images, settings.fourier, generator)
    share = _uniform(images, 0, settings.fourier_strength, generator) * chosen
    offset = 1 + (_uniform(images, 0, 1, generator) * (batch - 1)).long()  # never the image itself
    other = (torch.arange(batch, device=images.device) + offset) % batch
    mixed = mix_amplitude(images, other, share).clamp_(0, 1)
    return torch.where(chosen[:, None, None, None], mixed, images)


def _full(images: Tensor, value: float) -> Tensor:
    return torch.full((len(images),), float(value), device=images.device)


def _uniform(
    images: Tensor, low: float, high: float, generator: Generator, shape: tuple[int, ...] | None = None
) -> Tensor:
    """Draw uniform numbers of `shape`, one for each image by default."""
    draws = torch.rand(shape or (len(images),), generator=generator, device=images.device)
    return draws * (high - low) + low


def _chance(images: Tensor, probability: float, generator: Generator) -> Tensor:
    return torch.rand(len(images), generator=generator, device=images.device) < probability
