"""Nesterov momentum: the first of the paper's pieces of future work, fewer steps for the same descent."""

import torch

from sourceward.samplers.accept import ACCEPT_RULES
from sourceward.samplers.base import SAMPLERS, Info, Noise, State, StepSettings, Target


@SAMPLERS.register("nesterov")
def nesterov(state: State, target: Target, noise: Noise, settings: StepSettings) -> tuple[State, Info]:
    """Look ahead along the momentum, take the gradient there::

        x' = x + noise_std * eps
        v  <- momentum * v - step_size * clip(dE/d(x' + momentum * v))
        x  <- x' + v

    A refused step drops the momentum that led there.
    """
    jittered = state.feature + settings.noise_std * noise.normal
    origin = jittered + settings.momentum * state.momentum
    _, grad = target.energy_and_grad(origin)
    momentum = settings.momentum * state.momentum - settings.step_size * grad.clamp(
        -settings.clip, settings.clip
    )
    feature = jittered + momentum
    energy = target.energy(feature)
    accepted = ACCEPT_RULES[settings.accept](state.energy, energy, None, noise.uniform)
    row = accepted.unsqueeze(-1)
    new = State(
        torch.where(row, feature, state.feature),
        torch.where(accepted, energy, state.energy),
        state.grad,
        torch.where(row, momentum, torch.zeros_like(momentum)),
    )
    return new, Info(origin, energy, accepted)
