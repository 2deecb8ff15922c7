"""Triton kernels for chains on CUDA, behind one switch: used where they give the same samples."""

import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sourceward.functional import ChainWeights, EnergyWeights, row_keys
from sourceward.samplers.base import StepSettings


def kernels_for(weights: ChainWeights, feature: Tensor, record: Any = False) -> Any:
    """`samplers.cuda.kernels` if its kernels support this chain and are right on this device, else None."""
    kernels = usable_kernels() if feature.is_cuda else None
    if kernels is None or not kernels.fits(weights, feature):
        return None
    return kernels if kernels.is_narrow(weights, record) or _wide_are_right() else None


@cache
def usable_kernels() -> Any:
    """`samplers.cuda.kernels` if Triton is installed and its kernel for narrow features is right on this
    device, else None."""
    try:
        from sourceward.samplers.cuda import kernels, resident

        if resident.ON_CHIP:
            try:
                _check(kernels, NARROW)
            except Exception as error:  # as below
                warnings.warn(f"Chains do not stay on chip: {error}", stacklevel=3)
                resident.ON_CHIP = False
        if not resident.ON_CHIP:
            _check(kernels, NARROW)
        _check_keys(kernels)
    except Exception as error:  # whatever a compiler for another machine may raise
        warnings.warn(f"Triton kernels are off, chains run in plain PyTorch: {error}", stacklevel=3)
        return None
    return kernels


@cache
def _wide_are_right() -> bool:
    """Whether the kernels for wide features are right on this device. They are compiled only where needed,
    and where they fail the others are still used."""
    try:
        _check(usable_kernels(), WIDE)
    except Exception as error:  # as above
        warnings.warn(f"Chains of wide features run in plain PyTorch: {error}", stacklevel=3)
        return False
    return True


class _Case(NamedTuple):
    """A small chain on which kernels are compared with `fused_langevin`."""

    hidden: int
    dim: int
    rows: int = 32
    record: bool = False


NARROW = (_Case(256, 128), _Case(64, 64))
"""One kernel for all steps, with large and small weights: shared memory decides which kernel."""

WIDE = (_Case(256, 128, record=True), _Case(1056, 1056, 16), _Case(1056, 1056, 64), _Case(1056, 1056, 128))
"""Several kernels per step, with each choice of tiles."""


def _check(kernels: Any, cases: tuple[_Case, ...]) -> None:
    """Compare kernels with `fused_langevin` on small chains; raises ArithmeticError where they differ."""
    from sourceward.samplers.chain import fused_langevin, keyed_normals

    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    for hidden, dim, rows, record in cases:
        energy = EnergyWeights(
            normal(2, hidden, dim) / dim**0.5, None, normal(2, hidden), normal(2, 16, hidden) / hidden**0.5,
            normal(2, 16), normal(2, 16), normal(2),
        )  # fmt: skip
        weights, settings = ChainWeights.of(energy), StepSettings(step_size=100.0)
        start = normal(2, rows, dim)
        keys = torch.arange(rows, device="cuda")
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


def _check_keys(kernels: Any) -> None:
    rows = torch.randn(32, 64, device="cuda")
    if not torch.equal(kernels.row_keys(rows, 1), row_keys(rows, 1)):
        raise ArithmeticError("keys of rows differ")
