"""Triton kernels for chains on CUDA, behind one switch: used where they give the same samples."""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sourceward.functional import ChainWeights, EnergyWeights, row_keys
from sourceward.samplers.base import StepSettings


@cache
def usable_kernels() -> Any:
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
    from sourceward.samplers.chain import fused_langevin, keyed_normals

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
            raise ArithmeticError(f"ends of chains differ by {float(apart):.2g} of their length")
    if not torch.equal(kernels.row_keys(start[0], 1), row_keys(start[0], 1)):
        raise ArithmeticError("keys of rows differ")
