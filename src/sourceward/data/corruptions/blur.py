"""Blurs of lenses, glass and motion."""

import torch
from torch import Tensor

from sourceward.data.corruptions._core import (
    convolve,
    corruption,
    enlarge,
    gaussian_weights,
    quantise,
    smooth,
    streak,
    uniform,
    zoom_crop,
)

Generator = torch.Generator | None


@corruption(imagenet=(1, 2, 3, 4, 6), cifar=(0.4, 0.6, 0.7, 0.8, 1))
def gaussian_blur(images: Tensor, sigma: float, generator: Generator) -> Tensor:
    return smooth(images, sigma)


@corruption(  # radius, sigma that softens the rim
    imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
)
def defocus_blur(images: Tensor, level: tuple[float, float], generator: Generator) -> Tensor:
    """Blur as a lens out of focus does: mean over a disk with a soft rim."""
    radius, rim = level
    reach, rim_radius = (8, 1) if radius <= 8 else (int(radius), 2)
    at = torch.arange(-reach, reach + 1)
    disk = (at[:, None] ** 2 + at[None, :] ** 2 <= radius**2).float()
    weights = gaussian_weights(rim_radius, rim)
    kernel = convolve((disk / disk.sum())[None, None], weights[:, None] * weights[None, :], "mirror")[0, 0]
    return convolve(images, kernel, "mirror")


@corruption(  # sigma, largest move in pixels, rounds
    imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
)
def glass_blur(images: Tensor, level: tuple[float, int, int], generator: Generator) -> Tensor:
    """Blur as frosted glass does: replace each pixel by a neighbour, between two light blurs.

    The authors' code visits the pixels from last to first and copies a random neighbour into each, so a copy
    may be copied again. (A swap was intended; NumPy's views made it a copy, also in the published data.)
    """
    sigma, reach, rounds = level
    images = quantise(smooth(images, sigma)).float() / 255
    pixels = images.flatten(2)
    for _ in range(rounds):
        shape = (len(images), 2, *images.shape[-2:])
        moves = torch.randint(-reach, reach, shape, generator=generator, device=images.device)
        source = copied_from(moves, reach)
        pixels = pixels.gather(2, source[:, None].expand_as(pixels))
    return smooth(pixels.view_as(images), sigma)


def copied_from(moves: Tensor, reach: int) -> Tensor:
    """Return the pixel that each pixel is copied from after the sequential pass; (batch, height * width).

    `moves` is (batch, 2, height, width): rows, columns. A pixel points to the old value of a neighbour (index
    q) or, if that was visited before, to its new value (index q + pixels). Pointer doubling replaces the
    sequential pass: seven doublings follow chains of 128 copies, each link less likely than one half.
    """
    batch, _, height, width = moves.shape
    count = height * width
    rows = torch.arange(height, device=moves.device)[:, None].expand(height, width)
    columns = torch.arange(width, device=moves.device)[None, :].expand(height, width)
    interior = (rows > reach) & (rows <= height - reach) & (columns > reach) & (columns <= width - reach)
    here = rows * width + columns
    target = torch.where(interior, here + moves[:, 0] * width + moves[:, 1], here)
    visited = (target > here) & interior.flatten()[target]
    pointer = torch.where(visited, target + count, target).flatten(1)
    pointer = torch.cat([here.flatten().expand(batch, count), pointer], dim=1)
    for _ in range(7):
        pointer = pointer.gather(1, pointer)
    return pointer[:, count:]


@corruption(  # radius, sigma
    imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
)
def motion_blur(images: Tensor, level: tuple[int, float], generator: Generator) -> Tensor:
    """Blur as a moving camera does, within 45 degrees of the horizontal."""
    radius, sigma = level
    degrees = uniform((len(images),), -45, 45, images, generator)
    return streak(images, degrees, radius, sigma)


@corruption(  # layers, step of the zoom from one to the next
    imagenet=((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    cifar=((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
)
def zoom_blur(images: Tensor, level: tuple[int, float], generator: Generator) -> Tensor:
    """Average enlarged copies and the image, as a camera that moves toward the scene does."""
    layers, step = level
    height, width = images.shape[-2:]
    total = images.clone()
    for i in range(layers):
        factor = 1 + i * step
        tall, wide = zoom_crop(height, factor), zoom_crop(width, factor)
        top, left = (height - tall) // 2, (width - wide) // 2
        layer = enlarge(images[..., top : top + tall, left : left + wide], factor)
        total += layer[..., :height, :width]
    return total / (layers + 1)
