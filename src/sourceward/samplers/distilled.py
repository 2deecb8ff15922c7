"""The distilled: a chain's end in one go, by a map distilled from such chains (`distil`)."""

import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.samplers.accept import ACCEPT_RULES
from sourceward.samplers.base import SAMPLERS, Info, Noise, State, StepSettings, Target
from sourceward.samplers.run import Chain


@SAMPLERS.register("distilled")
def distilled(state: State, target: Target, noise: Noise, settings: StepSettings) -> tuple[State, Info]:
    """Jitter, then distilled to about where a long chain would end; the accept rule has the last word.

    `walk` distilled steps once and refines by Langevin steps.
    """
    if target.distilled is None:
        raise InputError("This model has no distilled to take. Fit it with sampler='distilled'.")
    origin = state.feature + settings.noise_std * noise.normal
    feature = target.distilled(origin)
    energy = target.energy(feature)
    accepted = ACCEPT_RULES[settings.accept](state.energy, energy, None, noise.uniform)
    new = state._replace(
        feature=torch.where(accepted.unsqueeze(-1), feature, state.feature),
        energy=torch.where(accepted, energy, state.energy),
    )
    return new, Info(origin, energy, accepted)


def joined(first: Chain, then: Chain) -> Chain:
    """Two chains, the second from where the first ended, as one."""

    def both(one: Tensor | None, other: Tensor | None, skip: int = 0) -> Tensor | None:
        if one is None or other is None:
            return one
        return torch.cat([one, other[skip:]])

    return Chain(
        then.feature,
        first.energy_before,
        then.energy_after,
        first.steps + then.steps,
        both(first.trajectory, then.trajectory, 1),
        both(first.energies, then.energies, 1),
        both(first.origins, then.origins),
    )
