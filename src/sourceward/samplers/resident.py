"""The fused Langevin chain as one Triton kernel for all steps, for CUDA and features that are not too wide.

A program keeps 16 samples of one source from the first step to the last; weights stream past it from the L2
cache, and what it writes down between two products stays there, too. No step waits for a launch or for other
programs. A wide matrix is better shared by many programs: see `kernels`, which also says what is rounded.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sourceward.functional.chain import ChainWeights
from sourceward.samplers.base import StepSettings
from sourceward.samplers.fused import Normals
from sourceward.samplers.kernel_noise import KeyedNormals
from sourceward.samplers.kernels import ROWS
from sourceward.samplers.run import Chain, Record

NOISE_ROWS = 4096
"""Rows of noise made together: memory does not grow with the number of steps."""


class Tiles(NamedTuple):
    """How the work of one program is cut."""

    columns: int
    """Of a product, computed together."""
    inner: int
    """Length of the pieces of a sum."""
    warps: int
    stages: int
    """Pieces on their way at once."""


TILES = {256: Tiles(256, 64, 8, 3), 512: Tiles(256, 64, 8, 3)}
"""By the greatest width of feature and hidden layer. What is wider goes to `kernels`."""


@triton.jit
def _load(at, inside, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(at) if WHOLE else tl.load(at, mask=inside, other=0.0)


@triton.jit
def _swish(a):  # type: ignore[no-untyped-def]
    return a * tl.sigmoid(a)


@triton.jit
def _value(a1, top, top_bias):  # type: ignore[no-untyped-def]
    return tl.sigmoid(tl.sum(_swish(a1) * top[None, :], axis=1) + top_bias)


@triton.jit
def _walk(  # type: ignore[no-untyped-def]
    x, a, proposal, origin, back, move, jitter, jitter_step, jitter_source, lift, origins, energy, before,
    taken, stop, up, down, narrow_up, narrow_down, narrow_bias, out, out_bias, steps, rows, clip, scale,
    DIM: tl.constexpr, HIDDEN: tl.constexpr, NARROW: tl.constexpr, FIRST: tl.constexpr,
    ALWAYS: tl.constexpr, STOP: tl.constexpr, NOISY: tl.constexpr, ORIGINS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All steps of a tile of samples. Threads meet between phases: each reads what others wrote."""
    source, sources = tl.program_id(1), tl.num_programs(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    r = tl.arange(0, NARROW)
    at = source * rows + m
    WHOLE_H: tl.constexpr = HIDDEN % BN == 0 and HIDDEN % BK == 0
    WHOLE_D: tl.constexpr = DIM % BN == 0 and DIM % BK == 0
    up += source * DIM * HIDDEN
    down += source * HIDDEN * DIM
    narrow_up += source * HIDDEN * NARROW
    narrow_down += source * NARROW * HIDDEN
    bias = tl.load(narrow_bias + source * NARROW + r)
    top = tl.load(out + source * NARROW + r)
    top_bias = tl.load(out_bias + source)
    if STOP:
        limit = tl.load(stop + at)

    if FIRST:
        a1 = tl.zeros((BM, NARROW), dtype=tl.float32)
        for start in tl.range(0, HIDDEN, BK, num_stages=STAGES):
            k = start + tl.arange(0, BK)
            a0 = _load(a + at[:, None] * HIDDEN + k[None, :], k[None, :] < HIDDEN, WHOLE_H)
            w = _load(narrow_up + k[:, None] * NARROW + r[None, :], k[:, None] < HIDDEN, WHOLE_H)
            a1 = tl.dot(_swish(a0).to(w.dtype), w, a1)
        old = _value(a1 + bias[None, :], top, top_bias)
        tl.store(before + at, old)
        count = tl.zeros((BM,), dtype=tl.int64)
    else:
        old = tl.load(energy + at)
        count = tl.load(taken + at)
    accepted = old < -1.0  # nobody: energies are positive, and NaN is not less

    for step in range(steps):
        # Where the last step ended; the origin of this one, and its energy.
        a1 = tl.zeros((BM, NARROW), dtype=tl.float32)
        for start in tl.range(0, HIDDEN, BK, num_stages=STAGES):
            k = start + tl.arange(0, BK)
            place, inside = at[:, None] * HIDDEN + k[None, :], k[None, :] < HIDDEN
            here, there = _load(a + place, inside, WHOLE_H), _load(proposal + place, inside, WHOLE_H)
            here = tl.where(accepted[:, None], there, here)  # before the first step nothing is accepted
            tl.store(a + place, here, mask=inside)
            if NOISY:
                above = lift + (source * steps + step) * rows * HIDDEN + m[:, None] * HIDDEN + k[None, :]
                here += _load(above, inside, WHOLE_H).to(tl.float32)
            tl.store(origin + place, here, mask=inside)
            w = _load(narrow_up + k[:, None] * NARROW + r[None, :], k[:, None] < HIDDEN, WHOLE_H)
            a1 = tl.dot(_swish(here).to(w.dtype), w, a1)
        a1 += bias[None, :]
        s1 = tl.sigmoid(a1)
        value = tl.sigmoid(tl.sum(a1 * s1 * top[None, :], axis=1) + top_bias)
        slope = (value * (1 - value))[:, None] * top[None, :] * (s1 * (1 + a1 * (1 - s1)))
        tl.debug_barrier()
        # dE/da0.
        for start in tl.range(0, HIDDEN, BK, num_stages=STAGES):
            k = start + tl.arange(0, BK)
            place, inside = at[:, None] * HIDDEN + k[None, :], k[None, :] < HIDDEN
            w = _load(narrow_down + r[:, None] * HIDDEN + k[None, :], inside, WHOLE_H)
            a0 = _load(origin + place, inside, WHOLE_H)
            s0 = tl.sigmoid(a0)
            b = tl.dot(slope.to(w.dtype), w) * (s0 * (1 + a0 * (1 - s0)))
            tl.store(back + place, b.to(back.dtype.element_ty), mask=inside)
        tl.debug_barrier()
        # The move: dE/dx, clipped and scaled.
        for first in range(0, DIM, BN):
            n = first + tl.arange(0, BN)
            total = tl.zeros((BM, BN), dtype=tl.float32)
            for start in tl.range(0, HIDDEN, BK, num_stages=STAGES):
                k = start + tl.arange(0, BK)
                b = _load(back + at[:, None] * HIDDEN + k[None, :], k[None, :] < HIDDEN, WHOLE_H)
                keep = (k[:, None] < HIDDEN) & (n[None, :] < DIM)
                w = _load(down + k[:, None] * DIM + n[None, :], keep, WHOLE_H and WHOLE_D)
                total = tl.dot(b, w, total)
            total = tl.minimum(tl.maximum(total, -clip), clip) * scale
            tl.store(move + at[:, None] * DIM + n[None, :], total, mask=n[None, :] < DIM)
        tl.debug_barrier()
        # The proposal, and its energy.
        a1 = tl.zeros((BM, NARROW), dtype=tl.float32)
        for first in range(0, HIDDEN, BN):
            n = first + tl.arange(0, BN)
            place, inside = at[:, None] * HIDDEN + n[None, :], n[None, :] < HIDDEN
            base, total = _load(origin + place, inside, WHOLE_H), tl.zeros((BM, BN), dtype=tl.float32)
            for start in tl.range(0, DIM, BK, num_stages=STAGES):
                k = start + tl.arange(0, BK)
                d = _load(move + at[:, None] * DIM + k[None, :], k[None, :] < DIM, WHOLE_D)
                keep = (k[:, None] < DIM) & (n[None, :] < HIDDEN)
                w = _load(up + k[:, None] * HIDDEN + n[None, :], keep, WHOLE_H and WHOLE_D)
                total = tl.dot(d.to(w.dtype), w, total)
            total += base
            tl.store(proposal + place, total, mask=inside)
        tl.debug_barrier()
        for start in tl.range(0, HIDDEN, BK, num_stages=STAGES):
            k = start + tl.arange(0, BK)
            a0 = _load(proposal + at[:, None] * HIDDEN + k[None, :], k[None, :] < HIDDEN, WHOLE_H)
            w = _load(narrow_up + k[:, None] * NARROW + r[None, :], k[:, None] < HIDDEN, WHOLE_H)
            a1 = tl.dot(_swish(a0).to(w.dtype), w, a1)
        new = _value(a1 + bias[None, :], top, top_bias)
        accepted = (new - new) == 0.0 if ALWAYS else new <= old
        if STOP:
            accepted = accepted & (old > limit)
        old = tl.where(accepted, new, old)
        count += accepted.to(tl.int64)
        for start in range(0, DIM, BN):
            k = start + tl.arange(0, BN)
            place, inside = at[:, None] * DIM + k[None, :], k[None, :] < DIM
            here = _load(x + place, inside, WHOLE_D)
            there = here
            if NOISY:
                near = jitter + step * jitter_step + source * jitter_source + m[:, None] * DIM + k[None, :]
                there += _load(near, inside, WHOLE_D)
            if ORIGINS:
                kept = origins + step * sources * rows * DIM + place
                tl.store(kept, there, mask=inside)
            there += _load(move + place, inside, WHOLE_D)
            tl.store(x + place, tl.where(accepted[:, None], there, here), mask=inside)

    tl.store(energy + at, old)
    tl.store(taken + at, count)
    for start in range(0, HIDDEN, BN):  # for steps that another launch takes
        k = start + tl.arange(0, BN)
        place, inside = at[:, None] * HIDDEN + k[None, :], k[None, :] < HIDDEN
        tl.store(a + place, _load(proposal + place, inside, WHOLE_H), mask=inside & accepted[:, None])


def fits(weights: ChainWeights, record: Record) -> bool:
    """Whether the kernel takes this chain; `kernels.fits` says what else is asked."""
    return record is not True and _tiles(weights) is not None


@torch.no_grad()
def resident_langevin(
    weights: ChainWeights,
    feature: Tensor,
    bias: Tensor,
    settings: StepSettings,
    num_steps: int,
    normals: Normals,
    *,
    record: Record = False,
    stop_below: Tensor | None = None,
) -> Chain:
    """`fused_langevin` by one kernel; `fits` says whether it can be used."""
    half = weights.half if weights.half is not None else weights.halved()
    tiles = _tiles(weights)
    assert tiles is not None
    assert num_steps > 0
    sources, rows, dim = feature.shape
    a, x = weights.first(feature, bias), feature.clone(memory_format=torch.contiguous_format)
    hidden, narrow = a.shape[-1], weights.out.shape[-1]
    energy, before = feature.new_empty(2, sources, rows)
    taken = torch.empty(sources, rows, dtype=torch.int64, device=feature.device)
    stop = None if stop_below is None else stop_below.to(energy.dtype).expand_as(energy).contiguous()
    origins = feature.new_empty(num_steps, *feature.shape) if record else None
    proposal, origin, move = torch.empty_like(a), torch.empty_like(a), torch.empty_like(x)
    back = torch.empty_like(a, dtype=half.up.dtype)
    together = max(1, NOISE_ROWS // rows)
    for first in range(0, num_steps, together):
        count = min(together, num_steps - first)
        jitter, lift = x, x
        if settings.noise_std:
            jitter, rounded = _jitter(normals, first, count, settings.noise_std, half.up.dtype)
            flat = rounded.transpose(0, 1).flatten(1, 2).expand(sources, -1, -1)
            lift = torch.bmm(flat, half.up)
        _walk[(rows // ROWS, sources)](
            x, a, proposal, origin, back, move, jitter, jitter.stride(0),
            jitter.stride(1) if jitter.shape[1] > 1 else 0, lift,
            x if origins is None else origins[first:], energy, before, taken,
            energy if stop is None else stop, half.up, half.down, half.narrow_up, half.narrow_down,
            weights.narrow_bias, weights.out, weights.out_bias, count, rows, settings.clip,
            -settings.step_size,
            DIM=dim, HIDDEN=hidden, NARROW=narrow, FIRST=first == 0,
            ALWAYS=settings.accept == "always", STOP=stop is not None, NOISY=settings.noise_std != 0,
            ORIGINS=origins is not None, BM=ROWS, BN=tiles.columns, BK=tiles.inner, STAGES=tiles.stages,
            num_warps=tiles.warps,
        )  # fmt: skip
    return Chain(x, before, energy, taken, None, None, origins)


def _jitter(normals: Normals, k: int, n: int, std: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What moves x, (steps, sources or 1, rows, dim), and the same as products take it."""
    if isinstance(normals, KeyedNormals):
        return normals.jitter(k, n, std, dtype)
    jitter = normals(k, n).mul_(std)
    return jitter, jitter.to(dtype)


def _tiles(weights: ChainWeights) -> Any:
    width = max(weights.up.shape[1:])
    return next((TILES[limit] for limit in sorted(TILES) if width <= limit), None)
