"""The distilled one-step sampler: a learned map to about where a long Langevin chain would end.

`training.distillation` trains the map; `functional.distilled` is its formula.
"""

import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.samplers.base import SAMPLERS, Info, Noise, State, StepSettings, Target, energy_not_higher
from sourceward.samplers.run import Chain


@SAMPLERS.register("distilled")
def distilled(state: State, target: Target, noise: Noise, settings: StepSettings) -> tuple[State, Info]:
    """Add noise, then apply the distilled map; a sample whose energy would rise keeps its place.

    `run_chain` takes this step once and refines its result by Langevin steps.
    """
    if target.distilled is None:
        raise InputError("This model has no distilled sampler. Fit it with sampler='distilled'.")
    origin = state.feature + settings.noise_std * noise.normal
    feature = target.distilled(origin)
    energy = target.energy(feature)
    accepted = energy_not_higher(state.energy, energy)
    new = state._replace(
        feature=torch.where(accepted.unsqueeze(-1), feature, state.feature),
        energy=torch.where(accepted, energy, state.energy),
    )
    return new, Info(origin, energy, accepted)


def concatenate(first: Chain, second: Chain) -> Chain:
    """Two chains, the second started where the first ended, as one."""

    def both(a: Tensor | None, b: Tensor | None, skip: int = 0) -> Tensor | None:
        return a if a is None or b is None else torch.cat([a, b[skip:]])

    return Chain(
        second.feature,
        first.energy_before,
        second.energy_after,
        first.steps + second.steps,
        both(first.trajectory, second.trajectory, 1),
        both(first.energies, second.energies, 1),
        both(first.origins, second.origins),
    )
