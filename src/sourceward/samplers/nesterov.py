"""Gradient steps with Nesterov momentum: fewer steps for the same descent."""

import torch

from sourceward.samplers.base import SAMPLERS, Info, Noise, State, StepSettings, Target, energy_not_higher


@SAMPLERS.register("nesterov")
def nesterov(state: State, target: Target, noise: Noise, settings: StepSettings) -> tuple[State, Info]:
    """Take the gradient ahead along the momentum, then step::

        x' = x + noise_std * eps
        v  <- momentum * v - step_size * clip(dE/d(x' + momentum * v))
        x  <- x' + v

    A step that raises the energy is refused, and its momentum is reset to zero.
    """
    noisy = state.feature + settings.noise_std * noise.normal
    origin = noisy + settings.momentum * state.momentum
    _, grad = target.energy_and_grad(origin)
    clipped = grad.clamp(-settings.clip, settings.clip)
    momentum = settings.momentum * state.momentum - settings.step_size * clipped
    feature = noisy + momentum
    energy = target.energy(feature)
    accepted = energy_not_higher(state.energy, energy)
    row = accepted.unsqueeze(-1)
    new = state._replace(
        feature=torch.where(row, feature, state.feature),
        energy=torch.where(accepted, energy, state.energy),
        momentum=torch.where(row, momentum, torch.zeros_like(momentum)),
    )
    return new, Info(origin, energy, accepted)
