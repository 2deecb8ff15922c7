"""Test-time transforms: each makes copies of an image that its class survives.

A transform returns copies of a batch. `hflip`, `crop`, `grayscale`, `rotate` and `sketch` change the pixels;
`fourier` mixes the image's amplitude spectrum with the mean amplitudes of each source (test-time Fourier
style calibration, Zhao et al., IJCAI 2022); `adain` leaves the pixels and has the backbone replace the
statistics of its early feature maps by those of each source (see `nn.feature_statistics`).
`adaptation.tta` predicts on the copies and averages.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.registry import Registry
from sourceward.data.image_ops import grayscale, mix_amplitude_toward, rotate, sketch

CROP = 0.85
"""Share of each side that `crop` keeps."""

ANGLES = (-30.0, -15.0, 15.0, 30.0)
"""Degrees of `rotate`."""

COPY_SCALE = 0.7
"""Least share of the side that copies have, 160 of 224 pixels: see `ImagePreprocessing.copy_size`."""

AMPLITUDE_SHARE = 0.5
"""Share of a source's amplitudes in `fourier`."""

TIE = 1e-3
"""Added before rounding to uint8: interpolation often ends at exactly one half, give or take a rounding."""

OWN = -1
"""In place of a source's number: the copy keeps its own feature statistics."""

MEAN = -2
"""In place of a source's number: the mean feature statistics of all sources."""


class Copy(NamedTuple):
    """One copy of every image of a batch."""

    images: Tensor
    """uint8, (batch, 3, height, width)."""
    weight: float
    """In the average; the image itself has weight 1."""
    source: int = OWN
    """The source whose feature statistics the backbone applies, `MEAN` or `OWN`."""


@dataclass(frozen=True)
class Transform:
    """A way to make copies of images.

    Args:
        about: what it does, for people.
        pixels: from images in [0, 1], (batch, 3, height, width), and the sources' mean amplitudes to copies.
        each: whether every copy weighs as much as the image itself; otherwise all copies together do.
        exact: `pixels` moves pixels and computes none, so that it takes and returns bytes.
        needs: `amplitudes` or `feature_statistics` of the sources; nothing when empty.
    """

    about: str
    pixels: Callable[[Tensor, Tensor | None], list[Tensor]]
    each: bool = False
    exact: bool = False
    needs: str = ""


TRANSFORMS: Registry[Transform] = Registry("transform")


def list_transforms() -> list[str]:
    """Names of the test-time transforms.

    >>> list_transforms()
    ['hflip', 'crop', 'grayscale', 'rotate', 'sketch', 'fourier', 'adain', 'adain_mean']
    """
    return list(TRANSFORMS)


def center_crop(images: Tensor) -> Tensor:
    """The centre of the images, resized to their size.

    >>> center_crop(torch.arange(8.0).expand(1, 3, 8, 8) / 8)[0, 0, 0, [0, -1]]
    tensor([0.1250, 0.7500])
    """
    height, width = images.shape[-2:]
    return resize_centre(images, (int(CROP * height), int(CROP * width)), (height, width))


def resize_centre(images: Tensor, kept: Sequence[int], size: Sequence[int]) -> Tensor:
    """The centre of images resized to `size`, bilinear with antialiasing.

    Args:
        images: float, (batch, channels, height, width).
        kept: height and width of the centre.
        size: height and width of the result.
    """
    sides = images.shape[-2:]
    if torch.compiler.is_exporting() or images.is_cuda:  # runtimes resize no numbers of double precision, and
        # torch resizes one image after the other on CUDA
        constant = _weights if torch.compiler.is_exporting() else _known_weights
        down, across = (constant(*one, images.device) for one in zip(sides, kept, size))
        return down.to(images.dtype) @ images @ across.to(images.dtype).mT
    (top, height), (left, width) = (((side - own) // 2, own) for side, own in zip(sides, kept))
    middle = images[..., top : top + height, left : left + width]
    return F.interpolate(middle, size=tuple(size), mode="bilinear", antialias=True)


def _weights(side: int, kept: int, size: int, device: torch.device) -> Tensor:
    """The weight of each of `side` pixels in each of the `size` pixels that its centre is resized to, along
    one axis: (size, side)."""
    ratio = kept / size
    at = (torch.arange(size, dtype=torch.float64, device=device) + 0.5) * ratio
    place = torch.arange(side, dtype=torch.float64, device=device) + 0.5 - (side - kept) // 2
    weight = (1 - (place - at[:, None]).abs() / max(ratio, 1)).clamp_min(0)
    weight = weight * ((place > 0) & (place < kept))
    return weight / weight.sum(1, keepdim=True)


@cache
def _known_weights(side: int, kept: int, size: int, device: torch.device) -> Tensor:
    """`_weights`, which a captured CUDA graph would compute every time. They are kept for good: graphs read
    them where they are."""
    with torch.inference_mode(False):  # else no later call could compute a gradient with them
        return _weights(side, kept, size, device)


def shrink(images: Tensor, size: Sequence[int]) -> Tensor:
    """uint8 images resized to `size`; as they are where that is their size."""
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    return as_bytes(resize(images.double() / 255, size))


def resize(images: Tensor, size: Sequence[int]) -> Tensor:
    """Images in [0, 1] resized to `size`; as they are where that is their size."""
    sides = tuple(images.shape[-2:])
    return images if sides == tuple(size) else resize_centre(images, sides, size)


def _rotations(images: Tensor, _: Tensor | None) -> list[Tensor]:
    if torch.compiler.is_exporting():
        return [_rotated(images, math.radians(degrees)) for degrees in ANGLES]
    return [rotate(images, torch.full_like(images[:, 0, 0, 0], degrees)) for degrees in ANGLES]


def _rotated(images: Tensor, angle: float) -> Tensor:
    """`rotate` for an exported graph: the sum of four pixels each, in double precision in every runtime."""
    height, width = images.shape[-2:]
    y, x = (torch.arange(side, device=images.device).double() - (side - 1) / 2 for side in (height, width))
    cos, sin = math.cos(angle), math.sin(angle)
    across = (cos * x - sin * y[:, None] + (width - 1) / 2).clamp(0, width - 1)
    down = (sin * x + cos * y[:, None] + (height - 1) / 2).clamp(0, height - 1)
    left, top = across.floor(), down.floor()
    pixels, found = images.flatten(-2), torch.zeros_like(images)
    for row, tall in ((top, 1 - down + top), (top + 1, down - top)):
        for column, wide in ((left, 1 - across + left), (left + 1, across - left)):
            place = row.clamp_max(height - 1) * width + column.clamp_max(width - 1)
            found = found + tall * wide * pixels[..., place.long().flatten()].unflatten(-1, (height, width))
    return found


def _toward_sources(images: Tensor, amplitudes: Tensor | None) -> list[Tensor]:
    assert amplitudes is not None
    return [mix_amplitude_toward(images, own, AMPLITUDE_SHARE) for own in amplitudes]


for _name, _transform in {
    "hflip": Transform("horizontal flip", lambda images, _: [images.flip(-1)], exact=True),
    "crop": Transform("centre crop, resized", lambda images, _: [center_crop(images)]),
    "grayscale": Transform("grayscale", lambda images, _: [grayscale(images).expand_as(images)]),
    "rotate": Transform("rotation by 15 and 30 degrees either way", _rotations, each=True),
    "sketch": Transform(
        "redrawn as a sketch",
        lambda images, _: [sketch(images, torch.full_like(images[:, 0, 0, 0], 2.0))],
    ),
    "fourier": Transform("Fourier amplitudes of each source", _toward_sources, needs="amplitudes"),
    "adain": Transform(
        "AdaIN to the feature statistics of each source", lambda images, _: [], needs="feature_statistics"
    ),
    "adain_mean": Transform(
        "AdaIN to the mean feature statistics of all sources",
        lambda images, _: [],
        needs="feature_statistics",
    ),
}.items():
    TRANSFORMS.register(_name)(_transform)


def parse_transforms(names: str) -> list[str]:
    """Names joined by +, checked; none of "".

    >>> parse_transforms("hflip+adain")
    ['hflip', 'adain']
    """
    found = names.split("+") if names else []
    for name in found:
        if name not in TRANSFORMS:
            raise unknown_name("transform", name, TRANSFORMS)
    if len(set(found)) < len(found):
        raise InputError(f"Expected each transform once, but got '{names}'.")
    return found


def make_copies(
    name: str,
    images: Tensor,
    sources: int = 0,
    amplitudes: Tensor | None = None,
    size: Sequence[int] | None = None,
) -> Iterator[Copy]:
    """The copies that one transform makes of uint8 images.

    Args:
        name: in `TRANSFORMS`.
        images: uint8, (batch, 3, height, width).
        sources: number of sources, for `adain`.
        amplitudes: (sources, 3, height, width // 2 + 1), for `fourier`.
        size: height and width of the copies; those of the images when None.

    >>> [int(copy.images.sum()) for copy in make_copies("grayscale", torch.full((1, 3, 2, 2), 7).byte())]
    [84]
    """
    transform, size = TRANSFORMS[name], images.shape[-2:] if size is None else size
    if transform.needs == "feature_statistics":
        toward, small = range(sources) if name == "adain" else (MEAN,), shrink(images, size)
        yield from (Copy(small, 1 / len(toward), source) for source in toward)
        return
    if transform.exact:
        copies = transform.pixels(shrink(images, size), amplitudes)
    else:  # in double, so that every device and every runtime rounds the copies to the same bytes
        made = transform.pixels(images.double() / 255, amplitudes)
        copies = [as_bytes(resize(copy, size)) for copy in made]
    weight = 1.0 if transform.each else 1 / len(copies)
    yield from (Copy(copy, weight) for copy in copies)


def as_bytes(images: Tensor) -> Tensor:
    """[0, 1] to uint8. A value of exactly one half goes up on every device, whatever its rounding error."""
    return (images * 255 + TIE).round().to(torch.uint8)


def mean_amplitude(images: Iterable[Tensor]) -> Tensor:
    """Mean Fourier amplitudes of batches of uint8 images: (3, height, width // 2 + 1).

    >>> mean_amplitude([torch.full((2, 3, 2, 2), 255, dtype=torch.uint8)])[0]
    tensor([[4., 0.],
            [0., 0.]])
    """
    count, total = 0, torch.zeros(())
    for batch in images:
        count, total = count + len(batch), torch.fft.rfft2(batch.float() / 255).abs().sum(0) + total
    return total / count
