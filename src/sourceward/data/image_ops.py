"""Deterministic operations on a batch of images, each with one parameter per image.

Images are float (batch, channels, height, width), on any device; colour operations expect values in [0, 1].
Training augmentation, AugMix, the rotated datasets and test-time transforms all use these functions.

torchvision's functional transforms take one parameter for the whole batch. Looped over a batch of 96 images
of 224 pixels on a CPU they need 3 to 7 times the time of the functions here; `rotate` and `gaussian_blur` pad
differently, and `resized_crop` rounds boxes to whole pixels. `rgb_to_grayscale` takes the whole batch, but
rounds differently, which contrast, hue and normalization amplify to 2e-5: recorded trainings would change.
Only `autocontrast`, which needs no parameter and gives the same bits, comes from torchvision (augmix.py).
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_and_hflip(images: Tensor, boxes: Tensor, hflips: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop to `boxes`, resize to `size` and flip horizontally, in one bilinear interpolation.

    Shapes: `boxes` (batch, 4) top, left, height, width in pixels; `hflips` bool (batch,).
    """
    height, width = images.shape[-2:]
    top, left, tall, wide = boxes.unbind(1)
    zero = torch.zeros_like(top)
    across = torch.where(hflips, -wide, wide) / width
    rows = [
        torch.stack([across, zero, (2 * left + wide) / width - 1], dim=1),
        torch.stack([zero, tall / height, (2 * top + tall) / height - 1], dim=1),
    ]
    return _affine(images, rows, size, "border")


def rotate(images: Tensor, degrees: Tensor, padding: str = "border") -> Tensor:
    """Rotate each image counter-clockwise about its centre by `degrees` (batch,), bilinear.

    `padding` is the padding mode of `torch.nn.functional.grid_sample`. Sine and cosine are computed in the
    precision of `degrees`: the rotated datasets, whose fingerprints are recorded, pass float64.

    >>> corner = torch.zeros(1, 1, 4, 4); corner[0, 0, 0, 3] = 1
    >>> rotate(corner, torch.tensor([90.0])).round().nonzero().tolist()
    [[0, 0, 0, 0]]
    """
    height, width = images.shape[-2:]
    angle = torch.deg2rad(degrees.to(images.device))
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [
        torch.stack([cos, -sin * height / width, zero], dim=1),
        torch.stack([sin * width / height, cos, zero], dim=1),
    ]
    return _affine(images, rows, (height, width), padding)


def _affine(images: Tensor, rows: list[Tensor], size: tuple[int, int], padding: str) -> Tensor:
    theta = torch.stack(rows, dim=1).to(images.dtype)
    grid = F.affine_grid(theta, [*images.shape[:2], *size], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def grayscale(images: Tensor) -> Tensor:
    """Return the luma (batch, 1, height, width) of RGB images, with torchvision's weights."""
    red, green, blue = images.split(1, dim=1)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply each image by its factor (batch,)."""
    return (images * factors[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Scale the distance of each pixel to the mean luma of its image by `factors` (batch,)."""
    mean = grayscale(images).mean(dim=(2, 3), keepdim=True)
    return torch.lerp(mean, images, factors[:, None, None, None]).clamp_(0, 1)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Scale the distance of each pixel to its own luma by `factors` (batch,)."""
    return torch.lerp(grayscale(images), images, factors[:, None, None, None]).clamp_(0, 1)


def adjust_hue(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift the H of HSV by `shifts` (batch,), in fractions of the colour circle."""
    red, green, blue = images.unbind(1)
    value = images.amax(dim=1)
    span = value - images.amin(dim=1)
    inverse = 1 / torch.where(span > 0, span, 1)
    hue = torch.where(
        value == red,
        (green - blue) * inverse,
        torch.where(value == green, (blue - red) * inverse + 2, (red - green) * inverse + 4),
    )
    hue = hue + 6 * shifts[:, None, None]  # in sixths of the circle
    channels = []
    for start in (5, 3, 1):  # the hues at which red, green and blue begin to fall
        at = (hue + start).remainder_(6)
        channels.append(value - span * torch.minimum(at, 4 - at).clamp_(0, 1))
    return torch.stack(channels, dim=1)


def sketch(images: Tensor, strength: Tensor) -> Tensor:
    """Return dark lines on white: luma divided by its local mean, to the power of `strength` (batch,).

    >>> images = torch.full((1, 3, 150, 150), 0.3)
    >>> images[..., 75] = 0.0
    >>> sketch(images, torch.ones(1))[0, 0, 0, [10, 75]].round(decimals=1)
    tensor([1.0000, 0.1000])
    """
    luma = grayscale(images) + 0.02  # black areas need a ratio, too
    local_mean = _gaussian_blur(luma, max(1.0, max(luma.shape[-2:]) / 75))  # below 1, a pixel is its own mean
    return (luma / local_mean).clamp_(0, 1).pow(strength[:, None, None, None]).expand_as(images)


def _gaussian_blur(images: Tensor, sigma: float) -> Tensor:
    """Blur one-channel images; edge pixels are repeated outside (torchvision's function reflects)."""
    radius = math.ceil(3 * sigma)
    steps = torch.arange(-radius, radius + 1, device=images.device).to(images.dtype)
    weight = torch.softmax(-0.5 * (steps / sigma) ** 2, dim=0)
    padded = F.pad(images, (radius,) * 4, mode="replicate")
    if torch.compiler.is_exporting():  # runtimes convolve no numbers of double precision
        for axis in (-1, -2):
            parts = (w * padded.narrow(axis, i, images.shape[axis]) for i, w in enumerate(weight))
            padded = torch.stack([*parts]).sum(0)
        return padded
    return F.conv2d(F.conv2d(padded, weight[None, None, None]), weight[None, None, :, None])


def mix_amplitude(images: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Mix `share` (batch,) of the amplitude spectrum of image `other` (batch,) into each; phases stay."""
    spectrum = torch.fft.rfft2(images.float())
    return _mix(spectrum, spectrum.abs()[other], share[:, None, None, None], images.shape[-2:])


def mix_amplitude_toward(images: Tensor, amplitude: Tensor, share: float) -> Tensor:
    """Mix `share` of a given amplitude spectrum into each image; the phases stay.

    Shapes: `amplitude` ([batch,] channels, height, width // 2 + 1), as `torch.fft.rfft2` returns it.

    >>> images = torch.full((1, 3, 2, 2), 0.2)
    >>> mix_amplitude_toward(images, torch.fft.rfft2(torch.full((3, 2, 2), 0.6)).abs(), 0.5).unique()
    tensor([0.4000])
    """
    spectrum = torch.fft.rfft2(images)
    return _mix(spectrum, amplitude.to(images), share, images.shape[-2:]).clamp_(0, 1)


def _mix(spectrum: Tensor, amplitude: Tensor, share: Tensor | float, size: Sequence[int]) -> Tensor:
    own = spectrum.abs()
    ratio = amplitude / own.clamp_min(torch.finfo(own.dtype).eps)
    # A positive factor keeps the phase; a share of 0 multiplies by exactly 1.
    return torch.fft.irfft2(spectrum * (1 + share * (ratio - 1)), s=tuple(size))


def rotate_quarters(images: Tensor, rotations: Tensor) -> Tensor:
    """Rotate each square image (batch, channels, side, side) counter-clockwise, `rotations` times 90 degrees.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> rotate_quarters(image, torch.tensor([1])).tolist()
    [[[[2, 4], [1, 3]]]]
    """
    rotated = torch.stack([images.rot90(k, (2, 3)) for k in range(4)])
    return rotated[rotations, torch.arange(len(images), device=images.device)]
