"""The registry of corruptions, and the random numbers, filters and warps that several of them share."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sourceward._util.registry import Registry

Function = Callable[[Tensor, Any, torch.Generator | None], Tensor]

RECIPES = ("imagenet", "cifar")


@dataclass(frozen=True)
class Corruption:
    """`function(images in [0, 1], level, generator)`, and its five levels in each recipe."""

    function: Function
    levels: Mapping[str, tuple[Any, ...]]


CORRUPTIONS: Registry[Corruption] = Registry("corruption")


def corruption(imagenet: tuple[Any, ...], cifar: tuple[Any, ...]) -> Callable[[Function], Function]:
    """Register a function under its own name, with its levels from mild to severe."""

    def add(function: Function) -> Function:
        CORRUPTIONS.register(function.__name__)(Corruption(function, {"imagenet": imagenet, "cifar": cifar}))
        return function

    return add


def quantise(images: Tensor) -> Tensor:
    """[0, 1] to uint8 by truncation, as the authors' code does; 1e-3 of a level absorbs float32 rounding."""
    return (images.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(shape, generator=generator, device=like.device)


def uniform(
    shape: tuple[int, ...], low: float, high: float, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    return torch.rand(shape, generator=generator, device=like.device) * (high - low) + low


def gray(images: Tensor) -> Tensor:
    """Return the luma (batch, 1, height, width) with the weights of ITU-R BT.601.

    `image_ops.grayscale` has 0.2989 for red, as torchvision; the benchmark corruptions have 0.299.
    """
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def border_index(size: int, radius: int, border: str, device: torch.device) -> Tensor:
    """Return the index of the pixel at each position of a line padded by `radius` on both sides.

    `nearest` repeats the edge, `mirror` reflects without repeating it, `reflect` repeats it once.
    (SciPy's names; OpenCV's BORDER_REFLECT_101 is `mirror`.)
    """
    at = torch.arange(-radius, size + radius, device=device)
    if border == "nearest":
        return at.clamp(0, size - 1)
    period = 2 * size if border == "reflect" else 2 * size - 2
    at = at % period
    return torch.minimum(at, period - 1 - at if border == "reflect" else period - at)


def pad(images: Tensor, rows: int, columns: int, border: str) -> Tensor:
    height, width = images.shape[-2:]
    images = images.index_select(-2, border_index(height, rows, border, images.device))
    return images.index_select(-1, border_index(width, columns, border, images.device))


def convolve(images: Tensor, kernel: Tensor, border: str) -> Tensor:
    """Correlate each channel with one kernel (height, width) of odd sides."""
    rows, columns = kernel.shape
    padded = pad(images, rows // 2, columns // 2, border)
    planes = padded.flatten(0, 1).unsqueeze(1)
    return F.conv2d(planes, kernel.to(images)[None, None]).view(images.shape)


def gaussian_weights(radius: int, sigma: float) -> Tensor:
    if sigma <= 0:
        return torch.ones(1)
    weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    return weights / weights.sum()


def smooth(
    images: Tensor, sigma: float | tuple[float, float], *, truncate: float = 4, border: str = "nearest"
) -> Tensor:
    """Apply Gaussian blur; `sigma` is a number or (rows, columns), the kernel ends at `truncate` sigmas."""
    rows, columns = sigma if isinstance(sigma, tuple) else (sigma, sigma)
    down = gaussian_weights(int(truncate * rows + 0.5), rows)
    across = gaussian_weights(int(truncate * columns + 0.5), columns)
    return convolve(convolve(images, down[:, None], border), across[None, :], border)


def streak(images: Tensor, degrees: Tensor, radius: int, sigma: float) -> Tensor:
    """Blur each image along its own direction: 2 * radius + 1 whole-pixel steps, half-Gaussian weights.

    `degrees` is (batch,); 0 is to the right, 90 down. Edge pixels are repeated outside of the image.
    """
    height, width = images.shape[-2:]
    reach = 2 * radius
    weights = torch.exp(-0.5 * (torch.arange(reach + 1) / sigma) ** 2)
    weights = weights / weights.sum()
    padded = pad(images, reach, reach, "nearest")
    blurred = torch.zeros_like(images)
    for source, out, angle in zip(padded, blurred, torch.deg2rad(degrees).tolist()):
        for step, weight in enumerate(weights.tolist()):
            top = reach + math.ceil(step * math.sin(angle) - 0.5)
            left = reach + math.ceil(step * math.cos(angle) - 0.5)
            out.add_(source[:, top : top + height, left : left + width], alpha=weight)
    return blurred


def zoom_crop(size: int, factor: float) -> int:
    """Return the side of the central crop that covers `size` pixels when enlarged by `factor`."""
    return math.ceil(size / factor)


def enlarge(crop: Tensor, factor: float) -> Tensor:
    """Enlarge bilinearly with the corners aligned, as `scipy.ndimage.zoom` does."""
    size = [round(side * factor) for side in crop.shape[-2:]]
    return F.interpolate(crop, size, mode="bilinear", align_corners=True)


def warp(images: Tensor, x: Tensor, y: Tensor, border: str) -> Tensor:
    """Sample each image bilinearly at pixel coordinates x, y (batch, height, width)."""
    height, width = images.shape[-2:]
    corners = border == "mirror"
    if corners:
        grid = torch.stack([2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1], dim=-1)
    else:
        grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=corners)
