"""`run_chain`: a chain on the stacked energies by the fastest path that gives the same samples."""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sourceward.functional import ChainWeights, EnergyWeights, row_keys
from sourceward.functional.distilled import DistilledWeights, StartPoint, distilled_step
from sourceward.samplers.base import StepSettings, Target
from sourceward.samplers.distilled import concatenate
from sourceward.samplers.fused import fused_langevin, generator_normals, keyed_normals
from sourceward.samplers.run import Chain, Record, generator_noise, keyed_noise, run

FUSED = {"langevin": True, "langevin_unchecked": False}
"""Samplers with a fused implementation, and whether they refuse steps that raise the energy."""


@torch.no_grad()
def run_chain(
    sampler: str,
    feature: Tensor,
    weights: ChainWeights,
    bias: Tensor,
    settings: StepSettings,
    num_steps: int,
    noise: Tensor | torch.Generator | None,
    *,
    record: Record = False,
    distilled: DistilledWeights | None = None,
) -> Chain:
    """Take `num_steps` steps from `feature` (sources, batch, dim) on the energies of all sources.

    Args:
        sampler: a name in `SAMPLERS`; `distilled` takes one distilled step, then Langevin steps.
        feature: the starts.
        weights: of all sources.
        bias: from `ChainWeights.bias`.
        settings: of each step.
        num_steps: 0 returns the starts themselves.
        noise: (batch,) keys of the samples, or a generator (training).
        record: keep trajectory, energies and origins, or the "origins" alone.
        distilled: weights of the distilled sampler of all sources, which that sampler needs.
    """
    if sampler in FUSED:
        kernels = _kernels() if feature.is_cuda else None
        if kernels is not None and not kernels.fits(weights, feature):
            kernels = None
        if isinstance(noise, Tensor):
            normals = (kernels.KeyedNormals if kernels else keyed_normals)(noise, feature)
        else:
            normals = generator_normals(noise, feature)
        fused = kernels.kernel_langevin if kernels else fused_langevin
        return fused(
            weights, feature, bias, settings, num_steps, normals, checked=FUSED[sampler], record=record
        )
    target = Target(
        lambda x: weights.energy(weights.first(x, bias)),
        lambda x: weights.energy_and_grad(weights.first(x, bias)),
        None if distilled is None else lambda x: distilled_step(distilled, StartPoint.of(weights, x, bias)),
    )
    source = keyed_noise(noise, feature) if isinstance(noise, Tensor) else generator_noise(noise, feature)
    if sampler != "distilled" or num_steps < 2:
        return run(sampler, feature, target, settings, num_steps, source, record=record)
    first = run(sampler, feature, target, settings, 1, source, record=record)
    refined = run_chain(
        "langevin", first.feature, weights, bias, settings, num_steps - 1, noise, record=record
    )
    return concatenate(first, refined)


def keys_of(feature: Tensor, seed: int) -> Tensor:
    """`functional.row_keys` by the fastest path."""
    kernels = _kernels() if feature.is_cuda and feature.dtype == torch.float32 else None
    return (kernels.row_keys if kernels else row_keys)(feature, seed)


@cache
def _kernels() -> Any:
    """`samplers.cuda.kernels` if Triton is installed and its results are right on this device, else None."""
    try:
        from sourceward.samplers.cuda import kernels, resident

        if resident.ON_CHIP:
            try:
                _check(kernels)
            except Exception as error:  # as below
                warnings.warn(f"Chains do not stay on chip: {error}", stacklevel=3)
                resident.ON_CHIP = False
        if not resident.ON_CHIP:
            _check(kernels)
    except Exception as error:  # whatever a compiler for another machine may raise
        warnings.warn(f"Triton kernels are off, chains run in plain PyTorch: {error}", stacklevel=3)
        return None
    return kernels


def _check(kernels: Any) -> None:
    """Compare the kernels with `fused_langevin` on small chains; raises ArithmeticError where they differ."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    # One kernel for all steps with large and small weights (shared memory decides which kernel), then three
    # kernels per step.
    for hidden, dim, record in ((256, 128, False), (64, 64, False), (256, 128, True)):
        energy = EnergyWeights(
            normal(2, hidden, dim) / 11, None, normal(2, hidden), normal(2, 16, hidden) / 16, normal(2, 16),
            normal(2, 16), normal(2),
        )  # fmt: skip
        weights, settings, start = ChainWeights.of(energy), StepSettings(step_size=100.0), normal(2, 32, dim)
        keys = torch.arange(32, device="cuda")
        ends = [
            chain(weights, start, weights.bias(None), settings, 4, noise(keys, start), record=record).feature
            for chain, noise in (
                (fused_langevin, keyed_normals),
                (kernels.kernel_langevin, kernels.KeyedNormals),
            )
        ]
        apart = (ends[0] - ends[1]).abs().mean() / (ends[0] - start).abs().mean()
        if not apart < 0.05:
            raise ArithmeticError(f"ends of chains differ by {float(apart):.2g} of the distance moved")
    if not torch.equal(kernels.row_keys(start[0], 1), row_keys(start[0], 1)):
        raise ArithmeticError("keys of rows differ")
