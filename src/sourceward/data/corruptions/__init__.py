"""The nineteen image corruptions of ImageNet-C and CIFAR-10-C, batched on the device.

Kinds and severities are those of Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common
Corruptions and Perturbations" (ICLR 2019). The `imagenet` levels are those of PyPI `imagecorruptions` 1.1.2,
which the tests compare against; the `cifar` levels are those of `make_cifar_c.py` in the authors' repository.

>>> images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
>>> corrupt(images, "fog", severity=3, generator=torch.Generator().manual_seed(0)).shape
torch.Size([2, 3, 32, 32])
"""

import torch
from torch import Tensor

from sourceward._util.errors import InputError, unknown_name
from sourceward.data.corruptions import blur, digital, noise, spatter, weather
from sourceward.data.corruptions._core import CORRUPTIONS, RECIPES, Corruption, quantise

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "RECIPES", "TEST_CORRUPTIONS", "Corruption", "corrupt"]

TEST_CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")

SMALLEST_SIDE = 32  # the size of CIFAR, for which the mildest levels were made
CIFAR_SIDE = 64  # up to here the cifar levels are nearer to what the authors used (TinyImageNet-C)


@torch.no_grad()
def corrupt(
    images: Tensor,
    name: str,
    severity: int = 1,
    *,
    generator: torch.Generator | None = None,
    recipe: str | None = None,
) -> Tensor:
    """Corrupt each image of a batch.

    Shapes: `images` and the result are uint8 (batch, 3, height, width), on the same device.

    Args:
        name: one of `CORRUPTIONS`; `TEST_CORRUPTIONS` are the fifteen that benchmarks report.
        severity: 1 (mild) to 5 (severe).
        generator: on the device of `images`; the global generator of torch when None.
        recipe: "imagenet" or "cifar" levels; by default "cifar" for images of 64 pixels or less.
    """
    corruption = CORRUPTIONS[name]
    _check(images, severity, generator)
    if recipe is None:
        recipe = "cifar" if max(images.shape[-2:]) <= CIFAR_SIDE else "imagenet"
    if recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES)
    if len(images) == 0:
        return images.clone()
    level = corruption.levels[recipe][severity - 1]
    return quantise(corruption.function(images.float() / 255, level, generator))


def _check(images: Tensor, severity: int, generator: torch.Generator | None) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"Expected `images` to be uint8 (batch, 3, height, width), but got {images.dtype} "
            f"{tuple(images.shape)}. Corrupt before normalising; repeat a gray channel three times."
        )
    if min(images.shape[-2:]) < SMALLEST_SIDE:
        raise InputError(
            f"Expected `images` of {SMALLEST_SIDE} pixels or more on each side, but got "
            f"{tuple(images.shape[-2:])}. Resize them first."
        )
    if isinstance(severity, bool) or severity not in (1, 2, 3, 4, 5):
        raise InputError(
            f"Expected `severity` to be 1, 2, 3, 4 or 5, but got {severity!r}. 1 is the mildest."
        )
    if generator is not None and generator.device.type != images.device.type:
        raise InputError(
            f"Expected `generator` on {images.device}, like the images, but got {generator.device}. "
            f"Use torch.Generator({str(images.device)!r})."
        )
