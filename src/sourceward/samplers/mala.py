"""MALA, the Metropolis-adjusted Langevin algorithm: eq. 2 as printed, with a Metropolis correction.

Eq. 2 is the proposal, with lambda = step_size::

    x' = x - (lambda/2) clip(dE/dx) + N(0, lambda)

The Metropolis rule makes samples follow exp(-E) without bias. The clipped gradient is the drift on both sides
of the ratio, so detailed balance holds for any clip.
"""

import torch
from torch import Tensor

from sourceward.samplers.base import SAMPLERS, Info, Noise, State, StepSettings, Target, metropolis


@SAMPLERS.register("mala")
def mala(state: State, target: Target, noise: Noise, settings: StepSettings) -> tuple[State, Info]:
    """Propose a step by eq. 2 and accept it by the Metropolis rule.

    Its noise has standard deviation sqrt(step_size); `noise_std` is not used.
    """
    mean = _drift(state.feature, state.grad, settings)
    feature = mean + settings.step_size**0.5 * noise.normal
    energy, grad = target.energy_and_grad(feature)
    backward = _log_density(state.feature, _drift(feature, grad, settings), settings)
    forward = _log_density(feature, mean, settings)
    accepted = metropolis(state.energy, energy, backward - forward, noise.uniform)
    row = accepted.unsqueeze(-1)
    new = state._replace(
        feature=torch.where(row, feature, state.feature),
        energy=torch.where(accepted, energy, state.energy),
        grad=torch.where(row, grad, state.grad),
    )
    return new, Info(state.feature, energy, accepted)


def _drift(feature: Tensor, grad: Tensor, settings: StepSettings) -> Tensor:
    """Mean of the proposal from `feature`."""
    return feature - 0.5 * settings.step_size * grad.clamp(-settings.clip, settings.clip)


def _log_density(to: Tensor, mean: Tensor, settings: StepSettings) -> Tensor:
    """log N(to; mean, lambda), up to a constant."""
    return -(to - mean).square().sum(-1) / (2 * settings.step_size)
