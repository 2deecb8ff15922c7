"""Drops of water or mud on the lens."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sourceward.data.corruptions._core import convolve, corruption, normal, pad, smooth

Generator = torch.Generator | None

WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise
MUD = (63 / 255, 42 / 255, 20 / 255)
FARTHEST = 20  # distances are cut here


@corruption(  # liquid: mean, std, smoothing, threshold; strength of water or smoothing of mud; kind
    imagenet=(
        (0.65, 0.3, 4, 0.69, 0.6, "water"),
        (0.65, 0.3, 3, 0.68, 0.6, "water"),
        (0.65, 0.3, 2, 0.68, 0.5, "water"),
        (0.65, 0.3, 1, 0.65, 1.5, "mud"),
        (0.67, 0.4, 1, 0.65, 1.5, "mud"),
    ),
    cifar=(
        (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
        (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
        (0.65, 0.3, 1, 0.69, 0.5, "water"),
        (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
        (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
    ),
)
def spatter(
    images: Tensor, level: tuple[float, float, float, float, float, str], generator: Generator
) -> Tensor:
    """Add drops of water (severity 1 to 3) or mud (4 and 5) on the lens."""
    mean, std, sigma, threshold, last, kind = level
    batch, _, height, width = images.shape
    liquid = smooth(mean + std * normal((batch, 1, height, width), images, generator), sigma)
    liquid = torch.where(liquid < threshold, 0, liquid)
    if kind == "water":
        return images + last * _tint(droplets(liquid), WATER)
    cover = smooth((liquid > threshold).to(images), last)
    cover = torch.where(cover < 0.8, 0, cover)
    return images * (1 - cover) + _tint(cover, MUD)


def _tint(layer: Tensor, colour: tuple[float, float, float]) -> Tensor:
    return torch.cat([layer * channel for channel in colour], dim=1)


def droplets(liquid: Tensor) -> Tensor:
    """Return the light added by water, in [0, 1]; `liquid` is (batch, 1, height, width), 0 where dry.

    The authors' steps: Canny edges, distance transform, equalization, embossing, smoothing.
    """
    mean = torch.full((3, 3), 1 / 9)
    emboss = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
    liquid = (liquid * 255).floor().clamp(0, 255)
    depth = distance(edges(liquid))
    depth = equalise(convolve(depth, mean, "mirror").floor())
    relief = convolve(depth, emboss, "mirror").clamp(0, 255)
    relief = liquid * convolve(relief, mean, "mirror").round()
    return relief / relief.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-6)


def edges(liquid: Tensor) -> Tensor:
    """Return Canny's thin edges: local maxima of the L1 Sobel gradient above 150.

    Canny also follows an edge down to 50; the rim of a drop is a step of 160 or more, so little is missed.
    """
    smoothing, slope = torch.tensor([1.0, 2.0, 1.0]), torch.tensor([-1.0, 0.0, 1.0])
    across = convolve(liquid, smoothing[:, None] * slope, "nearest")
    down = convolve(liquid, slope[:, None] * smoothing, "nearest")
    strength = across.abs() + down.abs()
    padded = F.pad(strength, (1, 1, 1, 1))

    def neighbour(row: int, column: int) -> Tensor:
        height, width = strength.shape[-2:]
        return padded[..., 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    flat, steep = 2**0.5 - 1, 2**0.5 + 1  # tangents of 22.5 and 67.5 degrees
    horizontal = down.abs() < flat * across.abs()
    vertical = down.abs() > steep * across.abs()
    falling = across * down >= 0
    peak = torch.where(
        falling,
        (strength > neighbour(-1, -1)) & (strength > neighbour(1, 1)),
        (strength > neighbour(-1, 1)) & (strength > neighbour(1, -1)),
    )
    peak = torch.where(vertical, (strength > neighbour(-1, 0)) & (strength >= neighbour(1, 0)), peak)
    peak = torch.where(horizontal, (strength > neighbour(0, -1)) & (strength >= neighbour(0, 1)), peak)
    return peak & (strength > 150)


def distance(marks: Tensor) -> Tensor:
    """Return the exact Euclidean distance to the nearest mark, at most `FARTHEST`."""
    height, width = marks.shape[-2:]
    squared = torch.where(marks, 0.0, float(FARTHEST**2))
    for rows in (False, True):
        padded = pad(squared, FARTHEST * rows, FARTHEST * (not rows), "nearest")
        for shift in range(2 * FARTHEST + 1):
            top, left = shift * rows, shift * (not rows)
            shifted = padded[..., top : top + height, left : left + width] + (shift - FARTHEST) ** 2
            squared = torch.minimum(squared, shifted)
    return squared.sqrt()


def equalise(depth: Tensor) -> Tensor:
    """Equalize the histogram of levels 0 .. `FARTHEST` of each image to 0 .. 255."""
    levels = torch.arange(FARTHEST + 1, device=depth.device)
    counts = (depth.flatten(1)[:, None] == levels[:, None]).sum(dim=2)
    below = counts.cumsum(dim=1)
    first = torch.where(below > 0, below, depth[0].numel()).amin(
        dim=1, keepdim=True
    )  # pixels of the lowest level
    spread = (depth[0].numel() - first).clamp(min=1)
    table = ((below - first).clamp(min=0) * 255 / spread).round()
    return table.gather(1, depth.flatten(1).long()).view_as(depth)
