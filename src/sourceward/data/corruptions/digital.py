"""Corruptions by cameras, codecs and editors: contrast, colour, geometry, blocks."""

from io import BytesIO

import numpy as np
import torch
from torch import Tensor

from sourceward.data.corruptions._core import corruption, smooth, uniform, warp

Generator = torch.Generator | None


@corruption(imagenet=(0.4, 0.3, 0.2, 0.1, 0.05), cifar=(0.75, 0.5, 0.4, 0.3, 0.15))
def contrast(images: Tensor, factor: float, generator: Generator) -> Tensor:
    """Scale the distance of each channel to its mean over the image."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + (images - mean) * factor


@corruption(imagenet=(0.1, 0.2, 0.3, 0.4, 0.5), cifar=(0.05, 0.1, 0.15, 0.2, 0.3))
def brightness(images: Tensor, added: float, generator: Generator) -> Tensor:
    """Increase the V of HSV. Hue and saturation stay, so all channels have one factor; black becomes gray."""
    value = images.amax(dim=1, keepdim=True)
    raised = (value + added).clamp(max=1)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-6)), raised)


@corruption(  # factor of the saturation, and what is added to it
    imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
)
def saturate(images: Tensor, level: tuple[float, float], generator: Generator) -> Tensor:
    """Change the S of HSV. A gray pixel has hue 0, so an added saturation makes it red."""
    factor, added = level
    value = images.amax(dim=1, keepdim=True)
    span = value - images.amin(dim=1, keepdim=True)
    red = torch.zeros_like(images)
    red[:, 1:] = 1
    depth = torch.where(
        span > 0, (value - images) / span.clamp(min=1e-6), red
    )  # 0 at the maximum, 1 at the minimum
    saturation = span / value.clamp(min=1e-6) * factor + added
    return value * (1 - depth * saturation.clamp(0, 1))


@corruption(imagenet=(0.6, 0.5, 0.4, 0.3, 0.25), cifar=(0.95, 0.9, 0.85, 0.75, 0.65))
def pixelate(images: Tensor, scale: float, generator: Generator) -> Tensor:
    """Shrink by averaging whole pixels, and enlarge by repeating them. Rounds to uint8 as Pillow does."""
    height, width = images.shape[-2:]
    small = (images * 255).round()
    small = (small @ _box(width, int(width * scale), images.device).mT + 0.5).floor()
    small = (_box(height, int(height * scale), images.device) @ small + 0.5).floor()
    rows = _repeat(height, small.shape[-2], images.device)
    columns = _repeat(width, small.shape[-1], images.device)
    return small[:, :, rows][..., columns] / 255


def _box(size: int, smaller: int, device: torch.device) -> Tensor:
    """Return the matrix (smaller, size) of Pillow's BOX filter: means of pixels with centres in a box."""
    scale = size / smaller
    centre = (torch.arange(smaller, device=device, dtype=torch.float64) + 0.5) * scale
    offset = torch.arange(size, device=device) + 0.5 - centre[:, None]
    inside = ((offset > -scale / 2) & (offset <= scale / 2)).float()
    return inside / inside.sum(dim=1, keepdim=True)


def _repeat(size: int, smaller: int, device: torch.device) -> Tensor:
    return ((torch.arange(size, device=device, dtype=torch.float64) + 0.5) * smaller / size).long()


@corruption(imagenet=(25, 18, 15, 10, 7), cifar=(80, 65, 58, 50, 40))
def jpeg_compression(images: Tensor, quality: int, generator: Generator) -> Tensor:
    """Encode and decode through Pillow, on the CPU."""
    from PIL import Image

    pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    decoded = []
    for image in pixels:
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        decoded.append(torch.from_numpy(np.array(Image.open(file))))
    return torch.stack(decoded).permute(0, 3, 1, 2).to(images) / 255


@corruption(  # fractions of the height: local displacement, its smoothing, displacement by the affine map
    imagenet=((0.0625, 0.01, 0), (0.08125, 0.01, 0), (0.10625, 0.01, 0), (0.125, 0.01, 0), (0.15, 0.01, 0)),
    cifar=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
)
def elastic_transform(images: Tensor, level: tuple[float, float, float], generator: Generator) -> Tensor:
    """Stretch and squeeze small regions.

    The `imagenet` levels are those of `imagecorruptions`, which left out the affine map of ImageNet-C and
    displaces locally at every severity.
    """
    displacement, sigma, affine = level
    batch, _, height, width = images.shape
    rows = torch.arange(height, device=images.device)[:, None].expand(height, width)
    columns = torch.arange(width, device=images.device)[None, :].expand(height, width)
    if affine:
        images = _shear(images, affine * height, rows, columns, generator)
    if not displacement:
        return images
    moves = uniform((batch, 2, height, width), -1, 1, images, generator)
    moves = (
        smooth(moves, (sigma * height, sigma * width), truncate=3, border="reflect") * displacement * height
    )
    return warp(images, columns + moves[:, 0], rows + moves[:, 1], "reflect")


def _shear(images: Tensor, reach: float, rows: Tensor, columns: Tensor, generator: Generator) -> Tensor:
    """The affine map that moves three corners of a central square, each by up to `reach` pixels."""
    height, width = images.shape[-2:]
    side = min(height, width) // 3
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]) * side
    before = (corners + torch.tensor([width // 2, height // 2])).to(images).expand(len(images), 3, 2)
    after = before + uniform((len(images), 3, 2), -reach, reach, images, generator)
    ones = torch.ones_like(after[..., :1])
    back, _ = torch.linalg.solve_ex(torch.cat([after, ones], dim=-1), before)
    x, y = (
        columns * back[:, 0, i, None, None] + rows * back[:, 1, i, None, None] + back[:, 2, i, None, None]
        for i in (0, 1)
    )
    return warp(images, x, y, "mirror")
