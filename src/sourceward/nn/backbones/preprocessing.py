"""Preprocessing that belongs to pretrained weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sourceward._util.errors import InputError
from sourceward._util.reading import check_limit
from sourceward._util.values import Optional, Whole, check

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
STRIDE = 32
"""Of the last maps of most image backbones, in pixels."""


@dataclass(frozen=True)
class ImagePreprocessing:
    """Resize, centre crop, normalize.

    The image is resized so that it covers `size / crop_fraction`, then cropped to `size`. With
    `keep_aspect=False` it is squashed to that size instead. Antialiasing is always on, as in PIL.
    `copy_scale` is the least share of the side that copies of test-time augmentation have, see `copy_size`.

    >>> ImagePreprocessing(size=(32, 32)).prepare([torch.zeros(3, 48, 64, dtype=torch.uint8)]).shape
    torch.Size([1, 3, 32, 32])
    """

    size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = "bilinear"
    crop_fraction: float = 0.875
    keep_aspect: bool = True
    copy_scale: float = 1.0

    def __post_init__(self) -> None:
        check_limit("image_pixels", math.prod(self.size), "An image of the model's size")
        if self.interpolation not in INTERPOLATIONS:
            raise InputError(
                f"Expected `interpolation` to be one of {', '.join(INTERPOLATIONS)}, "
                f"but got {self.interpolation!r}."
            )

    @property
    def copy_size(self) -> tuple[int, int]:
        """Height and width of copies: at least `copy_scale` of the image's, smaller by whole strides.

        >>> ImagePreprocessing((224, 256), copy_scale=0.7).copy_size
        (160, 192)
        """
        left_out = (1 - self.copy_scale) / STRIDE
        strides = (min(int(left_out * side + 1e-9), (side - 1) // STRIDE) for side in self.size)
        height, width = (side - STRIDE * left for side, left in zip(self.size, strides))
        return height, width

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def prepare(self, items: Any, device: torch.device | str | None = None) -> Tensor:
        """Turn uint8 images of any size, a tensor or a list, into normalized (batch, channels, *size)."""
        images = as_uint8(items, channels=len(self.mean))
        if isinstance(images, list):
            images = torch.cat([self.resize(image[None]) for image in images])
        else:
            images = self.resize(images)
        return self.normalize(images.to(device))

    def resize(self, images: Tensor) -> Tensor:
        """Resize and crop uint8 (batch, channels, height, width) to uint8 (batch, channels, *size)."""
        height, width = self.size
        full = (round(height / self.crop_fraction), round(width / self.crop_fraction))
        if self.keep_aspect:
            # The longer side is rounded down, as torchvision and timm do.
            h, w = images.shape[-2:]
            wide = full[0] * w >= full[1] * h
            full = (full[0], full[0] * w // h) if wide else (full[1] * h // w, full[1])
        images = interpolate(images, full, self.interpolation)
        top, left = round((full[0] - height) / 2), round((full[1] - width) / 2)
        return images[..., top : top + height, left : left + width]

    def normalize(self, images: Tensor) -> Tensor:
        """Normalize uint8 images of the right size with the mean and std of the weights."""
        return normalize(images, self.mean, self.std)


@dataclass(frozen=True)
class TextPreprocessing:
    """The tokenizer (`hash`, or the origin of its files) and the longest text in tokens."""

    tokenizer: str
    max_length: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Preprocessing = ImagePreprocessing | TextPreprocessing


def normalize(
    images: Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return (images - mean) / std by channel; uint8 images are scaled to [0, 1] first, floats are not.

    Shapes: `images` (batch, channels, height, width); `mean` and `std` have one value for each channel.
    """
    if not len(mean) == len(std) == images.shape[1] or min(std) <= 0:
        raise InputError(
            f"Expected a mean and a positive std for each of {images.shape[1]} channels, in units of [0, 1], "
            f"but got mean={mean!r}, std={std!r}."
        )
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images
    out = torch.empty_like(pixels, dtype=dtype)
    for channel, (centre, spread) in enumerate(zip(mean, std)):  # numbers, not tensors: no copy to the device
        out[:, channel] = (pixels[:, channel] - centre) / spread
    return out


def denormalize(
    images: Tensor, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD
) -> Tensor:
    """Map normalized images back to [0, 1]; the inverse of `normalize`."""
    out = torch.empty_like(images)
    for channel, (centre, spread) in enumerate(zip(mean, std)):
        out[:, channel] = (images[:, channel] * spread + centre).clamp(0, 1)
    return out


SCHEMAS: dict[str, Any] = {
    "image": {
        "size": [Whole(1)],
        "mean": [float],
        "std": [float],
        "interpolation": set(INTERPOLATIONS),
        "crop_fraction": float,
        "keep_aspect": bool,
        "copy_scale": Optional(float),
    },
    "text": {"tokenizer": str, "max_length": Whole(1)},
}
"""Of `to_dict`. Earlier files have no `copy_scale`."""


def from_dict(kind: str, values: Mapping[str, Any]) -> Preprocessing:
    """Invert `to_dict`; JSON turned tuples into lists."""
    check(values, SCHEMAS[kind], "preprocessing")
    values = {name: value for name, value in values.items() if value is not None}
    if kind == "image":
        size, std, share = values["size"], values["std"], values["crop_fraction"]
        if (
            len(size) != 2
            or len(values["mean"]) != len(std)
            or not std
            or min(std) <= 0
            or not 0 < share <= 1
            or not 0 < values.get("copy_scale", 1.0) <= 1
        ):
            raise ValueError(f"`preprocessing` cannot be {dict(values)}")
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return ImagePreprocessing(**fields) if kind == "image" else TextPreprocessing(**fields)


def interpolate(images: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    """Resize uint8 images with antialiasing, rounding to uint8 as PIL does."""
    if tuple(images.shape[-2:]) == size:
        return images
    if mode == "nearest":
        return F.interpolate(images, size, mode="nearest-exact")
    if images.device.type == "cpu":
        return F.interpolate(images, size, mode=mode, antialias=True)
    resized = F.interpolate(
        images.float(), size, mode=mode, antialias=True
    )  # other devices have no uint8 kernel
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def as_uint8(items: Any, channels: int) -> Tensor | list[Tensor]:
    """Return a (batch, channels, height, width) tensor if all sizes are equal, else a list."""
    if isinstance(items, Tensor):
        return _check(items if items.ndim == 4 else items[None], channels)
    if not isinstance(items, Sequence) or isinstance(items, str | bytes) or not len(items):
        raise _not_images(items)
    images = [_check(_one(item)[None], channels)[0] for item in items]
    return torch.stack(images) if len({image.shape for image in images}) == 1 else images


def _one(item: Any) -> Tensor:
    from PIL import Image

    if isinstance(item, Image.Image):
        return torch.from_numpy(np.array(item.convert("RGB"))).permute(2, 0, 1)
    if isinstance(item, np.ndarray) and item.ndim == 3:
        return torch.from_numpy(np.ascontiguousarray(item)).permute(2, 0, 1)
    if isinstance(item, Tensor) and item.ndim == 3:
        return item
    raise _not_images(item)


def _check(images: Tensor, channels: int) -> Tensor:
    fits = images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] in (1, channels)
    if not fits or not images.numel():
        raise InputError(
            f"Expected uint8 images (batch, {channels} channels, height, width), but got {images.dtype} of "
            f"shape {tuple(images.shape)}. Pass normalized floats to the backbone itself."
        )
    return images if images.shape[1] == channels else images.expand(-1, channels, -1, -1)


def _not_images(item: Any) -> InputError:
    what = f"the text {item[:40]!r}" if isinstance(item, str) else f"{type(item).__name__}"
    if isinstance(item, Sequence) and not len(item):
        what = "an empty list"
    return InputError(
        "Expected images, as a uint8 tensor or a list of PIL images, uint8 arrays or tensors, "
        f"but got {what}. Open image files first; texts need a text backbone such as 'hf:...'."
    )
