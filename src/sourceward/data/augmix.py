"""AugMix (Hendrycks et al., ICLR 2020), batched on the device: each sample draws its own chains.

Three chains of one to three simple operations are mixed with Dirichlet weights, and the mixture with the
image itself. The operations are those of the paper, none of which is among the benchmark corruptions.
Images are float (batch, 3, height, width) in [0, 1].
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

Generator = torch.Generator | None

WIDTH, DEPTH, SEVERITY = 3, 3, 3
"""The paper's number of chains, largest number of operations in a chain, and severity (0 to 10): that of the
released code (google-research/augmix) for CIFAR; for ImageNet it has 1."""

OPERATIONS = (
    "autocontrast", "equalize", "posterize", "solarize",
    "rotate", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
GEOMETRIC = 4
"""Index of the first affine operation."""


@torch.no_grad()
def augmix(images: Tensor, *, severity: float = SEVERITY, generator: Generator = None) -> Tensor:
    """Return one AugMix sample of each image.

    >>> images = torch.rand(2, 3, 8, 8)
    >>> mixed = augmix(images, generator=torch.Generator().manual_seed(0))
    >>> mixed.shape, bool(((mixed >= 0) & (mixed <= 1)).all())
    (torch.Size([2, 3, 8, 8]), True)
    """
    with torch.autocast(images.device.type, enabled=False):  # grids and histograms need all digits
        return _augmix(images, severity, generator)


def _augmix(images: Tensor, severity: float, generator: Generator) -> Tensor:
    count, device = len(images), images.device
    # Dirichlet(1, 1, 1) is three exponentials over their sum; Beta(1, 1) is uniform.
    draws = -torch.rand(WIDTH, count, generator=generator, device=device).clamp_min(1e-12).log()
    weights = draws / draws.sum(0)
    share = torch.rand(count, generator=generator, device=device)[:, None, None, None]
    mixed = torch.zeros_like(images)
    for weight in weights:
        depth = torch.randint(1, DEPTH + 1, (count,), generator=generator, device=device)
        chain = images
        for step in range(DEPTH):
            changed = random_operation(chain, severity, generator)
            chain = torch.where((step < depth)[:, None, None, None], changed, chain)
        mixed += weight[:, None, None, None] * chain
    return (1 - share) * images + share * mixed


def random_operation(images: Tensor, severity: float, generator: Generator) -> Tensor:
    """Apply to every image one operation, drawn for it."""
    count, device = len(images), images.device
    choice = torch.randint(len(OPERATIONS), (count,), generator=generator, device=device)
    level = torch.rand(count, generator=generator, device=device) * (severity - 0.1) + 0.1
    sign = torch.rand(count, generator=generator, device=device).sub(0.5).sign()
    results = [autocontrast(images), equalize(images), posterize(images, level), solarize(images, level)]
    results.append(affine(images, choice - GEOMETRIC, level * sign))
    slot = choice.clamp_max(GEOMETRIC)[None, :, None, None, None]
    return torch.stack(results).gather(0, slot.expand(1, *images.shape))[0]


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to the range from 0 to 1; a constant channel stays."""
    from torchvision.transforms.v2.functional import autocontrast_image  # takes a second to import

    return autocontrast_image(images)


def equalize(images: Tensor) -> Tensor:
    """Equalize the histogram of each channel as PIL does.

    torchvision's `equalize` rounds constant channels to 8 bits, which would change published trainings.
    """
    batch, channels, height, width = images.shape
    level = (images * 255).round().long().flatten(2)
    count = torch.zeros(batch, channels, 256, device=images.device)
    count.scatter_add_(2, level, torch.ones_like(level, dtype=count.dtype))
    brightest = count.gather(2, level.amax(2, keepdim=True))
    step = ((height * width - brightest) / 255).floor()
    below = count.cumsum(2) - count
    table = ((below + (step / 2).floor()) / step.clamp_min(1)).floor().clamp(0, 255)
    equal = table.gather(2, level).view_as(images) / 255
    return torch.where((step > 0).unsqueeze(-1), equal.to(images.dtype), images)


def posterize(images: Tensor, level: Tensor) -> Tensor:
    """Keep the 4 - level * 4 / 10 most significant bits."""
    bits = 4 - (level * 4 / 10).floor()
    size = (2 ** (8 - bits))[:, None, None, None]
    return ((images * 255).round() / size).floor() * size / 255


def solarize(images: Tensor, level: Tensor) -> Tensor:
    """Invert pixels of value 1 - level / 10 or more."""
    bound = (256 - (level * 256 / 10).floor())[:, None, None, None] / 255
    return torch.where(images < bound, images, 1 - images)


def affine(images: Tensor, kind: Tensor, level: Tensor) -> Tensor:
    """Rotate by level * 3 degrees (kind 0), shear by level * 0.03 (1, 2), translate by level / 30 (3, 4)."""
    height, width = images.shape[-2:]
    angle = torch.where(kind == 0, level * (math.pi * 30 / 180 / 10), 0.0)
    shear, shift = level * 0.3 / 10, level / 10 * 2 / 3  # the grid spans 2, a third of the side at level 10

    def only(number: int, value: Tensor) -> Tensor:
        return torch.where(kind == number, value, 0.0)

    ratio = height / width
    rows = [
        torch.stack([angle.cos(), angle.sin() * ratio + only(1, shear) * ratio, only(3, shift)], dim=1),
        torch.stack([-angle.sin() / ratio + only(2, shear) / ratio, angle.cos(), only(4, shift)], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images.dtype), padding_mode="zeros", align_corners=False)
