"""Langevin steps: the paper's two-number form and the textbook form of eq. 2."""

import torch
from torch import Tensor

from sourceward.samplers.accept import ACCEPT_RULES
from sourceward.samplers.base import SAMPLERS, Info, Noise, State, StepSettings, Target


@SAMPLERS.register("langevin")
def langevin(state: State, target: Target, noise: Noise, settings: StepSettings) -> tuple[State, Info]:
    """The paper's practice: jitter, then descend. Step size and noise are two independent numbers::

    x' = x + noise_std * eps
    x  <- x' - step_size * clip(dE/dx')
    """
    origin = state.feature + settings.noise_std * noise.normal
    _, grad = target.energy_and_grad(origin)
    feature = origin - settings.step_size * grad.clamp(-settings.clip, settings.clip)
    energy = target.energy(feature)
    accepted = ACCEPT_RULES[settings.accept](state.energy, energy, None, noise.uniform)
    new = State(
        torch.where(accepted.unsqueeze(-1), feature, state.feature),
        torch.where(accepted, energy, state.energy),
        state.grad,
        state.momentum,
    )
    return new, Info(origin, energy, accepted)


@SAMPLERS.register("textbook")
def textbook(state: State, target: Target, noise: Noise, settings: StepSettings) -> tuple[State, Info]:
    """Eq. 2: x <- x - (lambda/2) dE/dx + N(0, lambda), with lambda = step_size.

    With accept rule `metropolis` this is a correct MALA step: the clipped gradient is the drift on both
    sides of the ratio, so detailed balance holds for any clip.
    """
    feature = _drift(state.feature, state.grad, settings) + settings.step_size**0.5 * noise.normal
    energy, grad = target.energy_and_grad(feature)
    backward = _log_density(state.feature, _drift(feature, grad, settings), settings)
    forward = _log_density(feature, _drift(state.feature, state.grad, settings), settings)
    accepted = ACCEPT_RULES[settings.accept](state.energy, energy, backward - forward, noise.uniform)
    new = State(
        torch.where(accepted.unsqueeze(-1), feature, state.feature),
        torch.where(accepted, energy, state.energy),
        torch.where(accepted.unsqueeze(-1), grad, state.grad),
        state.momentum,
    )
    return new, Info(state.feature, energy, accepted)


def _drift(feature: Tensor, grad: Tensor, settings: StepSettings) -> Tensor:
    return feature - 0.5 * settings.step_size * grad.clamp(-settings.clip, settings.clip)


def _log_density(to: Tensor, mean: Tensor, settings: StepSettings) -> Tensor:
    """log N(to; mean, lambda), up to a constant."""
    return -(to - mean).square().sum(-1) / (2 * settings.step_size)
