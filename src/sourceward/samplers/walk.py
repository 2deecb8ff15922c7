"""The chain by its fastest way: fused where the settings allow, step by step otherwise."""

import torch
from torch import Tensor

from sourceward.functional import ChainWeights
from sourceward.samplers.base import StepSettings, Target
from sourceward.samplers.fused import RULES, fused_langevin, generator_normals, keyed_normals
from sourceward.samplers.run import Chain, Record, generator_noise, keyed_noise, run


@torch.no_grad()
def walk(
    sampler: str,
    feature: Tensor,
    weights: ChainWeights,
    bias: Tensor,
    settings: StepSettings,
    num_steps: int,
    noise: Tensor | torch.Generator | None,
    *,
    record: Record = False,
    stop_below: Tensor | None = None,
) -> Chain:
    """Take `num_steps` steps from `feature` (sources, batch, dim) on the energies of all sources.

    Args:
        sampler: a name in `SAMPLERS`.
        feature: the starts.
        weights: of all sources.
        bias: from `ChainWeights.bias`.
        settings: of each step.
        num_steps: 0 returns the starts themselves.
        noise: (batch,) keys of the samples, or a generator (training).
        record: keep trajectory, energies and origins, or the "origins" alone.
        stop_below: energies that broadcast to (sources, batch); a chain at or below its own stops there.
    """
    keyed = isinstance(noise, Tensor)
    if sampler == "langevin" and settings.accept in RULES:
        normals = keyed_normals(noise, feature) if keyed else generator_normals(noise, feature)
        return fused_langevin(
            weights, feature, bias, settings, num_steps, normals, record=record, stop_below=stop_below
        )
    target = Target(
        lambda x: weights.energy(weights.first(x, bias)),
        lambda x: weights.energy_and_grad(weights.first(x, bias)),
    )
    source = keyed_noise(noise, feature) if keyed else generator_noise(noise, feature)
    return run(sampler, feature, target, settings, num_steps, source, record=record, stop_below=stop_below)
