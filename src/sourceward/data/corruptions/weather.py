"""Snow, frost and fog."""

import torch
from torch import Tensor

from sourceward.data.corruptions._core import (
    corruption,
    enlarge,
    gray,
    normal,
    smooth,
    streak,
    uniform,
    zoom_crop,
)

Generator = torch.Generator | None


@corruption(  # flakes: mean, std, zoom, threshold; their fall: radius, sigma; weight of the image
    imagenet=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    cifar=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
)
def snow(images: Tensor, level: tuple[float, ...], generator: Generator) -> Tensor:
    """Add motion-blurred specks of noise, and the same rotated by 180 degrees, to a whitened image."""
    mean, std, zoom, threshold, radius, sigma, weight = level
    batch, _, height, width = images.shape
    crop = (batch, 1, zoom_crop(height, zoom), zoom_crop(width, zoom))
    flakes = enlarge(mean + std * normal(crop, images, generator), zoom)
    flakes = torch.where(flakes < threshold, 0, flakes).clamp(0, 1)
    degrees = uniform((batch,), -135, -45, images, generator)
    flakes = (streak(flakes, degrees, int(radius), sigma) * 255).round() / 255
    flakes = flakes[..., :height, :width]
    whitened = torch.maximum(images, gray(images) * 1.5 + 0.5)
    return weight * images + (1 - weight) * whitened + flakes + flakes.flip(2, 3)


@corruption(  # weight of the image, weight of the frost, length of a needle in pixels
    imagenet=((1, 0.4, 12), (0.8, 0.6, 12), (0.7, 0.7, 12), (0.65, 0.7, 12), (0.6, 0.75, 12)),
    cifar=((1, 0.2, 3), (1, 0.3, 3), (0.9, 0.4, 3), (0.85, 0.4, 3), (0.75, 0.45, 3)),
)
def frost(images: Tensor, level: tuple[float, float, int], generator: Generator) -> Tensor:
    """Blend a texture of ice with the image.

    The benchmarks blend photographs of frost; this package ships none and draws a texture instead. Its mean
    colour, its contrast and their variation are those of the five photographs, its pattern is only similar:
    results on frost are less comparable with published ones than those on other corruptions.
    """
    image_weight, frost_weight, needle = level
    return image_weight * images + frost_weight * ice(images, needle, generator)


ICE_COLOUR = (0.563, 0.645, 0.691)  # mean of the five photographs
ICE_SPREAD = 0.15  # of the mean gray, from one photograph to another
ICE_CONTRAST = 0.09  # standard deviation within a crop of 224 pixels


def ice(images: Tensor, needle: int, generator: Generator) -> Tensor:
    """Draw needles in patches of four directions on a cloudy ground, in [0, 1], of the size of `images`."""
    batch, _, height, width = images.shape
    start = uniform((batch,), 0, 180, images, generator)
    grains = normal((batch, 4, height, width), images, generator).split(1, dim=1)
    needles = [streak(grain, start + 45 * i, needle // 2, needle / 3) for i, grain in enumerate(grains)]
    patches = smooth(normal((batch, 4, height, width), images, generator), needle / 2, border="reflect")
    crystals = torch.cat(needles, dim=1).gather(1, patches.argmax(dim=1, keepdim=True))
    ground = plasma(batch, max(height, width), 1.3, images, generator)[..., :height, :width]
    texture = _standardise(smooth(crystals, 0.7)) + _standardise(ground)
    tone = ICE_SPREAD * normal((batch, 1, 1, 1), images, generator).clamp(-2, 2)
    light = ICE_CONTRAST * _standardise(texture) + tone
    return torch.cat([light + colour for colour in ICE_COLOUR], dim=1).clamp(0, 1)


def _standardise(layer: Tensor) -> Tensor:
    centred = layer - layer.mean(dim=(2, 3), keepdim=True)
    return centred / centred.square().mean(dim=(2, 3), keepdim=True).sqrt().clamp(min=1e-6)


@corruption(  # thickness, and how fast the fog evens out at smaller scales
    imagenet=((1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
    cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
)
def fog(images: Tensor, level: tuple[float, float], generator: Generator) -> Tensor:
    """Add a plasma fractal, and scale the sum to the maximum of the image."""
    thickness, decay = level
    batch, _, height, width = images.shape
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    haze = plasma(batch, max(height, width), decay, images, generator)[..., :height, :width]
    return (images + thickness * haze) * brightest / (brightest + thickness)


def plasma(batch: int, size: int, decay: float, like: Tensor, generator: Generator) -> Tensor:
    """Draw diamond-square fractals in [0, 1] on a torus, (batch, 1, side, side), side a power of two.

    At each scale the centres of squares, then of diamonds, become the mean of their four neighbours plus a
    draw from +-amplitude^2 (the authors' code multiplies by the amplitude twice).
    """
    side = 1 << (size - 1).bit_length()
    heights = torch.zeros(batch, side, side, device=like.device)
    step, amplitude = side, 100.0
    while step >= 2:
        half, spread = step // 2, amplitude**2

        def filled(total: Tensor, spread: float = spread) -> Tensor:
            return total / 4 + uniform(total.shape, -spread, spread, like, generator)

        corners = heights[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        heights[:, half::step, half::step] = filled(pairs + pairs.roll(-1, 2))
        centres = heights[:, half::step, half::step]
        rows = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
        columns = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
        heights[:, ::step, half::step] = filled(rows)
        heights[:, half::step, ::step] = filled(columns)
        step, amplitude = half, amplitude / decay
    low, high = heights.amin(dim=(1, 2), keepdim=True), heights.amax(dim=(1, 2), keepdim=True)
    return ((heights - low) / (high - low)).unsqueeze(1)
