"""The fused Langevin chain as one Triton kernel for all steps, for CUDA and features up to 512 wide.

If all weights of a source fit into shared memory, the kernel of `onchip` runs; otherwise the one here. A
program holds 16 samples of one source from the first step to the last, x in registers; weights are read from
the L2 cache. A step is three loops over blocks of the hidden layer: the energy of the origin; its gradient,
by way of dE/da0, which is never stored; the proposal and its energy. Only proposals are stored: each row has
two buffers for its a0, and accepting a step means using the other one. So threads synchronise once per step.
A wider matrix is better shared by many programs: see `kernels`, which also says what is rounded.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sourceward.functional.chain import ChainWeights, HalfWeights
from sourceward.functional.rows import matmul
from sourceward.samplers.base import StepSettings
from sourceward.samplers.chain import Normals
from sourceward.samplers.cuda.kernel_noise import drawn
from sourceward.samplers.cuda.kernels import ROWS
from sourceward.samplers.run import Chain, Record

try:
    from sourceward.samplers.cuda import onchip
except (ImportError, AttributeError):  # Gluon came to Triton late, and changes
    onchip = None  # type: ignore[assignment]

ON_CHIP = onchip is not None
"""Whether `onchip` may be used."""

NOISE_ROWS = 4096
"""Rows of noise drawn together: memory does not grow with the number of steps."""


class Tiles(NamedTuple):
    """How the work of one program is divided."""

    piece: int
    """Columns of the hidden layer in one block."""
    warps: int
    stages: int
    """Blocks loaded at once by the software pipeline."""

    def shared_bytes(self, width: int, narrow: int) -> int:
        """Shared memory that Triton uses for ROWS samples: a constant part, and the blocks of weights (half
        precision), a0 (single) and noise (half) in the pipeline."""
        piece = self.piece * (2 * (width + narrow) + 6 * ROWS)
        return 6144 + 24 * width + max(self.stages - 1, 1) * piece


TILES = {256: Tiles(64, 8, 4), 512: Tiles(64, 8, 3)}
"""By the larger width of feature and hidden layer. Wider networks use `kernels`."""


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
def _piece(here, above, k, HIDDEN: tl.constexpr, NOISY: tl.constexpr, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Columns k of a0 plus what the noise adds."""
    a0 = _load(here + k[None, :], k[None, :] < HIDDEN, WHOLE)
    if NOISY:
        a0 += _load(above + k[None, :], k[None, :] < HIDDEN, WHOLE).to(tl.float32)
    return a0


@triton.jit
def _second(  # type: ignore[no-untyped-def]
    here, above, narrow_up, bias, HIDDEN: tl.constexpr, NARROW: tl.constexpr, NOISY: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """a1 for the a0 stored at `here` plus what the noise adds, stored at `above`."""
    r, a1 = tl.arange(0, NARROW), tl.zeros((BM, NARROW), dtype=tl.float32)
    for first in tl.range(0, HIDDEN, BK, num_stages=STAGES):
        k = first + tl.arange(0, BK)
        a0 = _piece(here, above, k, HIDDEN, NOISY, HIDDEN % BK == 0)
        w = _load(narrow_up + k[:, None] * NARROW + r[None, :], k[:, None] < HIDDEN, HIDDEN % BK == 0)
        a1 = tl.dot(_swish(a0).to(w.dtype), w, a1)
    return a1 + bias[None, :]


@triton.jit
def _langevin_chain(  # type: ignore[no-untyped-def]
    start, start_source, x, state, jitter, jitter_step, jitter_source, lift, origins, energy, before, taken,
    steps, rows, clip, scale, up, down, narrow_up, narrow_down, narrow_bias, out, out_bias,
    DIM: tl.constexpr, HIDDEN: tl.constexpr, NARROW: tl.constexpr, FIRST: tl.constexpr,
    ALWAYS: tl.constexpr, NOISY: tl.constexpr, ORIGINS: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All steps of a tile of samples."""
    source, sources = tl.program_id(1), tl.num_programs(1)
    m, d, r = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, NARROW)
    at = source * rows + m
    row, inside = m[:, None] * DIM + d[None, :], d[None, :] < DIM
    WHOLE_H: tl.constexpr = HIDDEN % BK == 0
    WHOLE_D: tl.constexpr = DIM == BD
    up += source * DIM * HIDDEN
    down += source * HIDDEN * DIM
    narrow_up += source * HIDDEN * NARROW
    narrow_down += source * NARROW * HIDDEN
    bias = tl.load(narrow_bias + source * NARROW + r)
    top = tl.load(out + source * NARROW + r)
    top_bias = tl.load(out_bias + source)
    buffers = state + at[:, None] * HIDDEN
    other = sources * rows * HIDDEN
    point = _load(start + source * start_source + row, inside, WHOLE_D)
    if FIRST:
        a1 = _second(buffers, buffers, narrow_up, bias, HIDDEN, NARROW, False, BM, BK, STAGES)
        old = _value(a1, top, top_bias)
        tl.store(before + at, old)
        count = tl.zeros((BM,), dtype=tl.int64)
    else:
        old = tl.load(energy + at)
        count = tl.load(taken + at)

    for step in range(steps):
        odd = (count & 1).to(tl.int32)[:, None]  # each accepted step switched to the other buffer
        here, there = buffers + odd * other, buffers + (1 - odd) * other
        above = lift + ((source * steps + step) * rows + m[:, None]) * HIDDEN
        # The energy at the origin (the sample plus noise), and its slope.
        a1 = _second(here, above, narrow_up, bias, HIDDEN, NARROW, NOISY, BM, BK, STAGES)
        value, s1 = _value(a1, top, top_bias), tl.sigmoid(a1)
        slope = (value * (1 - value))[:, None] * top[None, :] * (s1 * (1 + a1 * (1 - s1)))
        slope = slope.to(up.dtype.element_ty)
        # The gradient step: dE/dx, clipped and scaled.
        total = tl.zeros((BM, BD), dtype=tl.float32)
        for first in tl.range(0, HIDDEN, BK, num_stages=STAGES):
            k = first + tl.arange(0, BK)
            w1 = _load(narrow_down + r[:, None] * HIDDEN + k[None, :], k[None, :] < HIDDEN, WHOLE_H)
            keep = (k[:, None] < HIDDEN) & inside
            w0 = _load(down + k[:, None] * DIM + d[None, :], keep, WHOLE_H and WHOLE_D)
            a0 = _piece(here, above, k, HIDDEN, NOISY, WHOLE_H)
            s0 = tl.sigmoid(a0)
            back = tl.dot(slope, w1) * (s0 * (1 + a0 * (1 - s0)))
            total = tl.dot(back.to(w0.dtype), w0, total)
        move = tl.minimum(tl.maximum(total, -clip), clip) * scale
        if NOISY:  # loads while the proposal is computed
            drift = _load(jitter + step * jitter_step + source * jitter_source + row, inside, WHOLE_D)
        # The proposal, and its energy.
        a1, rounded = tl.zeros((BM, NARROW), dtype=tl.float32), move.to(up.dtype.element_ty)
        for first in tl.range(0, HIDDEN, BK, num_stages=STAGES):
            k = first + tl.arange(0, BK)
            keep = (d[:, None] < DIM) & (k[None, :] < HIDDEN)
            w0 = _load(up + d[:, None] * HIDDEN + k[None, :], keep, WHOLE_H and WHOLE_D)
            w1 = _load(narrow_up + k[:, None] * NARROW + r[None, :], k[:, None] < HIDDEN, WHOLE_H)
            a0 = _piece(here, above, k, HIDDEN, NOISY, WHOLE_H) + tl.dot(rounded, w0)
            tl.store(there + k[None, :], a0, mask=k[None, :] < HIDDEN)
            a1 = tl.dot(_swish(a0).to(w1.dtype), w1, a1)
        new = _value(a1 + bias[None, :], top, top_bias)
        accepted = (new - new) == 0.0 if ALWAYS else new <= old
        old = tl.where(accepted, new, old)
        count += accepted.to(tl.int64)
        origin = point
        if NOISY:
            origin += drift
        if ORIGINS:
            kept = origins + (step * sources + source) * rows * DIM + row
            tl.store(kept, origin, mask=inside)
        point = tl.where(accepted[:, None], origin + move, point)
        tl.debug_barrier()  # the next step reads what other threads wrote `there`

    tl.store(x + source * rows * DIM + row, point, mask=inside)
    tl.store(energy + at, old)
    tl.store(taken + at, count)


def fits(weights: ChainWeights, record: Record) -> bool:
    """Whether the kernel supports this chain; `kernels.fits` has further conditions."""
    return record is not True and (_on_chip(weights) or _tiles(weights) is not None)


@torch.no_grad()
def resident_langevin(
    weights: ChainWeights,
    feature: Tensor,
    bias: Tensor,
    settings: StepSettings,
    num_steps: int,
    normals: Normals,
    *,
    checked: bool = True,
    record: Record = False,
) -> Chain:
    """`fused_langevin` by one kernel; call it only if `fits`."""
    half = weights.half if weights.half is not None else weights.halved()
    assert num_steps > 0
    sources, rows, dim = feature.shape
    hidden, narrow = weights.up.shape[-1], weights.out.shape[-1]
    state = feature.new_empty(1 if _on_chip(weights) else 2, sources, rows, hidden)
    matmul(feature, weights.up, bias, out=state[0])
    start = feature if feature[0].is_contiguous() else feature.contiguous()
    x, energy, before = feature.new_empty(feature.shape), *feature.new_empty(2, sources, rows)
    taken = torch.empty(sources, rows, dtype=torch.int64, device=feature.device)
    origins = feature.new_empty(num_steps, *feature.shape) if record else None
    together = max(1, NOISE_ROWS // rows)
    for first in range(0, num_steps, together):
        count = min(together, num_steps - first)
        jitter, lift = x, x
        if settings.noise_std:
            jitter, rounded = drawn(normals, first, count, settings.noise_std, half.up.dtype)
            flat = rounded.transpose(0, 1).flatten(1, 2).expand(sources, -1, -1)
            lift = torch.bmm(flat, half.up)
        _launch(
            (rows // ROWS, sources), weights, half,
            start, start.stride(0), x, state, jitter, jitter.stride(0),
            jitter.stride(1) if jitter.shape[1] > 1 else 0, lift,
            x if origins is None else origins[first:], energy, before, taken,
            count, rows, settings.clip, -settings.step_size,
            DIM=dim, HIDDEN=hidden, NARROW=narrow, FIRST=first == 0,
            ALWAYS=not checked, NOISY=settings.noise_std != 0,
            ORIGINS=origins is not None, BM=ROWS,
        )  # fmt: skip
        start = x
    return Chain(x, before, energy, taken, None, None, origins)


def _launch(
    grid: tuple[int, int], weights: ChainWeights, half: HalfWeights, *chain: Any, **flags: Any
) -> None:
    """Launch the kernel of `onchip` if the weights fit, otherwise the one here."""
    top = weights.narrow_bias, weights.out, weights.out_bias
    if _on_chip(weights):
        onchip.langevin_chain[grid](
            *chain, half.up, half.narrow_up, *top, **flags, BD=onchip.padded(flags["DIM"]),
            BH=onchip.padded(flags["HIDDEN"]), PIECE=onchip.PIECE, num_warps=onchip.WARPS,
        )  # fmt: skip
        return
    tiles = _tiles(weights)
    assert tiles is not None
    _langevin_chain[grid](
        *chain, half.up, half.down, half.narrow_up, half.narrow_down, *top, **flags,
        BD=max(triton.next_power_of_2(flags["DIM"]), ROWS), BK=tiles.piece, STAGES=tiles.stages,
        num_warps=tiles.warps,
    )  # fmt: skip


def _on_chip(weights: ChainWeights) -> bool:
    """Whether all weights of a source fit into shared memory."""
    if not ON_CHIP or not weights.up.is_cuda or not _is_ampere(weights.up.device):
        return False
    return onchip.shared_bytes(weights) <= shared_memory(weights.up.device)


def _tiles(weights: ChainWeights) -> Tiles | None:
    """Tiles for the smallest sufficient width, with as many stages as fit into shared memory."""
    width, narrow = max(weights.up.shape[1:]), weights.out.shape[-1]
    limit = next((limit for limit in sorted(TILES) if width <= limit), None)
    if limit is None:
        return None
    room = shared_memory(weights.up.device)
    fewer = (TILES[limit]._replace(stages=stages) for stages in range(TILES[limit].stages, 1, -1))
    return next((tiles for tiles in fewer if tiles.shared_bytes(limit, narrow) <= room), None)


@cache
def _is_ampere(device: torch.device) -> bool:
    """Whether the device has the matrix products that `onchip` uses: NVIDIA, Ampere or later."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def shared_memory(device: torch.device) -> float:
    """Bytes of shared memory available to a program."""
    if device.type != "cuda":
        return float("inf")
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
