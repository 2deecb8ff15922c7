"""Independent noise for every pixel and channel."""

import torch
from torch import Tensor

from sourceward.data.corruptions._core import corruption, normal, uniform

Generator = torch.Generator | None


@corruption(imagenet=(0.08, 0.12, 0.18, 0.26, 0.38), cifar=(0.04, 0.06, 0.08, 0.09, 0.10))
def gaussian_noise(images: Tensor, std: float, generator: Generator) -> Tensor:
    """Add Gaussian noise, as a sensor in low light does."""
    return images + std * normal(images.shape, images, generator)


@corruption(imagenet=(60, 25, 12, 5, 3), cifar=(500, 250, 100, 75, 50))
def shot_noise(images: Tensor, photons: float, generator: Generator) -> Tensor:
    """Replace values by Poisson counts, of mean `photons` for white."""
    return torch.poisson(images * photons, generator=generator) / photons


@corruption(imagenet=(0.03, 0.06, 0.09, 0.17, 0.27), cifar=(0.01, 0.02, 0.03, 0.05, 0.07))
def impulse_noise(images: Tensor, amount: float, generator: Generator) -> Tensor:
    """Add salt and pepper noise in equal parts, in each channel."""
    chance = uniform(images.shape, 0, 1, images, generator)
    salt_and_pepper = (chance < amount / 2).to(images)
    return torch.where(chance < amount, salt_and_pepper, images)


@corruption(imagenet=(0.15, 0.2, 0.35, 0.45, 0.6), cifar=(0.06, 0.1, 0.12, 0.16, 0.2))
def speckle_noise(images: Tensor, std: float, generator: Generator) -> Tensor:
    """Add Gaussian noise proportional to the brightness."""
    return images + images * std * normal(images.shape, images, generator)
