"""Langevin dynamics (eq. 2) in the form that the paper's experiments use: noise first, then a gradient step.

Eq. 2 as printed is x <- x - (lambda/2) dE/dx + N(0, lambda). In practice step size and noise are two
independent numbers, and the gradient is taken at the noisy point::

    x' = x + noise_std * eps
    x  <- x' - step_size * clip(dE/dx')

`langevin` refuses a step that raises the energy (released code); `langevin_unchecked` takes every step (the
paper's text). `samplers.mala` has the printed form, with a Metropolis correction.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sourceward.samplers.base import (
    SAMPLERS,
    Info,
    Noise,
    State,
    StepSettings,
    Target,
    always,
    energy_not_higher,
)


@SAMPLERS.register("langevin")
def langevin(state: State, target: Target, noise: Noise, settings: StepSettings) -> tuple[State, Info]:
    """Take one Langevin step; a sample whose energy would rise keeps its place."""
    return _step(state, target, noise, settings, energy_not_higher)


@SAMPLERS.register("langevin_unchecked")
def langevin_unchecked(
    state: State, target: Target, noise: Noise, settings: StepSettings
) -> tuple[State, Info]:
    """Take one Langevin step, whatever the energy does."""
    return _step(state, target, noise, settings, always)


def _step(
    state: State,
    target: Target,
    noise: Noise,
    settings: StepSettings,
    accept: Callable[[Tensor, Tensor], Tensor],
) -> tuple[State, Info]:
    origin = state.feature + settings.noise_std * noise.normal
    _, grad = target.energy_and_grad(origin)
    feature = origin - settings.step_size * grad.clamp(-settings.clip, settings.clip)
    energy = target.energy(feature)
    accepted = accept(state.energy, energy)
    new = state._replace(
        feature=torch.where(accepted.unsqueeze(-1), feature, state.feature),
        energy=torch.where(accepted, energy, state.energy),
    )
    return new, Info(origin, energy, accepted)
