"""What every sampler shares: the energy it descends, its state, what it reports, its settings.

A sampler is a pure function `step(state, target, noise, settings) -> (state, info)`. Tensors are
(sources, batch, dim) and (sources, batch): every source has its own chain, and all chains step together. The
accept rule is part of the sampler: it takes energies before and after the step, returns a mask of that shape,
and accepts no step to a point whose energy is not finite.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward._util.registry import Registry
from sourceward.functional import EnergyWeights, energy, energy_and_grad, latent_bias


class Target(NamedTuple):
    """An energy with its gradient, both functions of a feature (sources, batch, dim)."""

    energy: Callable[[Tensor], Tensor]
    energy_and_grad: Callable[[Tensor], tuple[Tensor, Tensor]]
    distilled: Callable[[Tensor], Tensor] | None = None
    """The distilled map from a feature to about where its chain would end; None if none was trained."""


def energy_target(weights: EnergyWeights, latent: Tensor | None) -> Target:
    """E^i(.|z) as a sampler's target; what does not change along the chain is computed once."""
    bias = latent_bias(weights, latent)
    return Target(lambda x: energy(weights, x, bias), lambda x: energy_and_grad(weights, x, bias))


class Noise(NamedTuple):
    """The randomness of one step: standard normals like the feature, uniforms like the energy."""

    normal: Tensor
    uniform: Tensor


class State(NamedTuple):
    """Where each chain is, and what the next step would otherwise compute again."""

    feature: Tensor
    energy: Tensor
    grad: Tensor
    momentum: Tensor


class Info(NamedTuple):
    """Diagnostics of one step."""

    origin: Tensor
    """The point at which the gradient was taken: the start of the guided step of eq. 10."""
    proposed_energy: Tensor
    accepted: Tensor


LARGEST = 1e9
"""Most that a step size or a noise may be."""


@dataclass(frozen=True)
class StepSettings:
    """Settings of one step. Defaults: the paper's for PACS.

    Args:
        step_size: factor of the gradient (lambda of eq. 2 for `mala`, which halves it).
        noise_std: standard deviation of the noise; `mala` uses sqrt(step_size) instead.
        clip: bound on each element of the gradient.
        momentum: of the Nesterov sampler.
    """

    step_size: float = 50.0
    noise_std: float = 0.001
    clip: float = 0.01
    momentum: float = 0.9

    def __post_init__(self) -> None:
        for name in ("step_size", "noise_std"):
            value = getattr(self, name)
            number: Any = value
            if not isinstance(value, Real) or not 0 <= number < float("inf"):
                raise InputError(f"Expected `{name}` to be 0 or more, but got {value!r}.")
            if number > LARGEST:  # its square and products with features are float32
                raise InputError(f"Expected `{name}` to be at most {LARGEST:g}, but got {value!r}.")
        if not self.clip > 0:
            raise InputError(f"Expected `clip` to be larger than 0, but got {self.clip}.")
        if not 0 <= self.momentum < 1:
            raise InputError(f"Expected `momentum` to be in [0, 1), but got {self.momentum}.")


class Step(Protocol):
    def __call__(
        self, state: State, target: Target, noise: Noise, settings: StepSettings
    ) -> tuple[State, Info]: ...


SAMPLERS: Registry[Step] = Registry("sampler")


def always(before: Tensor, after: Tensor) -> Tensor:
    """Accept every step, as the paper's text does."""
    return torch.isfinite(after)


def energy_not_higher(before: Tensor, after: Tensor) -> Tensor:
    """Refuse a step that raises the energy, as the released code does."""
    return after <= before


def metropolis(before: Tensor, after: Tensor, log_ratio: Tensor, uniform: Tensor) -> Tensor:
    """Metropolis-Hastings: accept with probability min(1, exp(before - after + log_ratio)).

    Args:
        before, after: energies.
        log_ratio: log q(x|x') - log q(x'|x) of the proposal density q, (sources, batch).
        uniform: numbers in (0, 1], (sources, batch).
    """
    return uniform.log() <= before - after + log_ratio
