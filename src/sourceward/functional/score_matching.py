"""Denoising score matching: an energy learned without a single chain.

Noise is added to a source's own sample, and the gradient of the energy has to point back (Vincent, 2011). By
Tweedie's formula the best guess of the clean sample is x + sigma^2 * score(x); with the score of exp(-E / T)
and T = sigma^2 / step_size that is one step of the sampler. So the loss asks that one step denoises::

    L = E | x + sigma eps - step_size * dE/dx(x + sigma eps | z) - x |^2 / (sigma^2 dim)
"""

from typing import Any

import torch
from torch import Tensor

from sourceward.functional.energy import EnergyWeights, energy_and_grad

NOISE = (0.2, 1.0)
"""Least and most noise, where a feature's elements have root mean square 1."""


def corrupt(feature: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Features (sources, batch, dim) under noise of random size, and that size, (sources, batch, 1)."""
    options: dict[str, Any] = {"generator": generator, "device": feature.device, "dtype": feature.dtype}
    low, high = NOISE
    sigma = low + (high - low) * torch.rand((*feature.shape[:-1], 1), **options)
    eps = torch.randn(feature.shape, **options)
    return feature + sigma * eps, sigma


def denoising_loss(
    weights: EnergyWeights, noisy: Tensor, clean: Tensor, sigma: Tensor, bias: Tensor, step_size: float
) -> Tensor:
    """How far one step from `noisy` ends from `clean`, in units of the noise; 1 is no step at all.

    Args:
        weights: of all sources; the loss is differentiable in them.
        noisy, sigma: from `corrupt`.
        clean: (sources, batch, dim).
        bias: from `latent_bias`, of the noisy sample's z.
        step_size: of the sampler.
    """
    _, grad = energy_and_grad(weights, noisy, bias)
    left = (noisy - step_size * grad - clean) / sigma
    return left.square().mean()
