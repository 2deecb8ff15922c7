"""The fused Langevin chain with everything on chip: weights in shared memory, samples in registers.

For CUDA devices whose shared memory holds the energy network of a source, such as an H100 with up to 256
features. A program copies the weights of one source once and holds 16 samples from the first step to the
last; only noise is read from global memory. Both directions of a product read the same copy. Triton places
tensors by itself, so this is written in Gluon, its lower-level language. Everything else is as in `resident`,
which launches this kernel if it fits.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from sourceward.functional.chain import ChainWeights
from sourceward.samplers.cuda.kernels import ROWS

WARPS = 8
PIECE = 64
"""Length of the blocks of a product's inner dimension."""


def padded(width: int) -> int:
    """The width in shared memory, padded with zeros: a power of 2, at least 64."""
    return max(64, triton.next_power_of_2(width))


def shared_bytes(weights: ChainWeights) -> int:
    """Shared memory: weights and one factor of each product, in half precision, and space for row sums."""
    dim, hidden, narrow = *map(padded, weights.up.shape[1:]), weights.out.shape[-1]
    halves = dim * hidden + hidden * narrow + ROWS * (dim + hidden + narrow)
    return 2 * halves + 4 * ROWS * min(WARPS, narrow // 8)


@gluon.jit
def _sigmoid(a):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + gl.exp(-a))


@gluon.jit
def _quick_sigmoid(a):  # type: ignore[no-untyped-def]
    """One instruction, exact to 2^-12: enough for values that half precision rounds as much."""
    half = gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [0.5 * a], dtype=gl.float32, is_pure=True, pack=1
    )
    return 0.5 + 0.5 * half


@gluon.jit
def _value(a1, s1, top, top_bias):  # type: ignore[no-untyped-def]
    return _sigmoid(gl.sum(a1 * s1 * top[None, :], axis=1) + top_bias)


@gluon.jit
def _copy_in(  # type: ignore[no-untyped-def]
    matrix, buffer, HIGH: gl.constexpr, WIDE: gl.constexpr, TALL: gl.constexpr, BROAD: gl.constexpr,
    LINES: gl.constexpr,
):  # fmt: skip
    """Copy a (HIGH, WIDE) matrix into shared memory of (TALL, BROAD), padded with zeros."""
    n = gl.arange(0, BROAD, gl.SliceLayout(0, LINES))
    for first in gl.static_range(0, TALL, 32):
        k = first + gl.arange(0, 32, gl.SliceLayout(1, LINES))
        inside = (k[:, None] < HIGH) & (n[None, :] < WIDE)
        buffer.slice(first, 32, dim=0).store(
            gl.load(matrix + k[:, None] * WIDE + n[None, :], mask=inside, other=0.0)
        )


@gluon.jit
def _times(left, right, total, INNER: gl.constexpr, PIECE: gl.constexpr):  # type: ignore[no-untyped-def]
    """total + left @ right, both in shared memory."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, total.type.layout, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, total.type.layout, 2)
    DEEP: gl.constexpr = PIECE if PIECE < INNER else INNER
    for first in gl.static_range(0, INNER, DEEP):
        a = left.slice(first, DEEP, dim=1).load(LEFT)
        total = mma_v2(a, right.slice(first, DEEP, dim=0).load(RIGHT), total)
    return total


@gluon.jit
def langevin_chain(  # type: ignore[no-untyped-def]
    start, start_source, x, state, jitter, jitter_step, jitter_source, lift, origins, energy, before, taken,
    steps, rows, clip, scale, up, narrow_up, narrow_bias, out, out_bias,
    DIM: gl.constexpr, HIDDEN: gl.constexpr, NARROW: gl.constexpr, FIRST: gl.constexpr,
    ALWAYS: gl.constexpr, NOISY: gl.constexpr, ORIGINS: gl.constexpr,
    BM: gl.constexpr, BD: gl.constexpr, BH: gl.constexpr, PIECE: gl.constexpr,
):  # fmt: skip
    """All steps of a tile of samples; the final a0 is left in `state`."""
    WARPS: gl.constexpr = gl.num_warps()
    TILE: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, WARPS], [16, 8])
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    HALF: gl.constexpr = up.dtype.element_ty
    source, sources = gl.program_id(1), gl.num_programs(1)
    m = gl.program_id(0) * BM + gl.arange(0, BM, gl.SliceLayout(1, TILE))
    d, h = gl.arange(0, BD, gl.SliceLayout(0, TILE)), gl.arange(0, BH, gl.SliceLayout(0, TILE))
    r = gl.arange(0, NARROW, gl.SliceLayout(0, TILE))
    at = source * rows + m
    row, inside = m[:, None] * DIM + d[None, :], (m[:, None] < rows) & (d[None, :] < DIM)
    place, within = at[:, None] * HIDDEN + h[None, :], (m[:, None] < rows) & (h[None, :] < HIDDEN)
    point = gl.load(start + source * start_source + row, mask=inside, other=0.0)
    a0 = gl.load(state + place, mask=within, other=0.0)
    bias = gl.load(narrow_bias + source * NARROW + r)[None, :]
    top = gl.load(out + source * NARROW + r)
    top_bias = gl.load(out_bias + source)
    w0 = gl.allocate_shared_memory(HALF, [BD, BH], SHARED)
    w1 = gl.allocate_shared_memory(HALF, [BH, NARROW], SHARED)
    of_dim = gl.allocate_shared_memory(HALF, [BM, BD], SHARED)
    of_hidden = gl.allocate_shared_memory(HALF, [BM, BH], SHARED)
    of_narrow = gl.allocate_shared_memory(HALF, [BM, NARROW], SHARED)
    _copy_in(up + source * DIM * HIDDEN, w0, DIM, HIDDEN, BD, BH, LINES)
    _copy_in(narrow_up + source * HIDDEN * NARROW, w1, HIDDEN, NARROW, BH, NARROW, LINES)
    none_d = gl.zeros([BM, BD], gl.float32, TILE)
    none_h = gl.zeros([BM, BH], gl.float32, TILE)
    none_n = gl.zeros([BM, NARROW], gl.float32, TILE)
    if FIRST:
        of_hidden.store((a0 * _quick_sigmoid(a0)).to(HALF))
        a1 = _times(of_hidden, w1, none_n, BH, PIECE) + bias
        old = _value(a1, _sigmoid(a1), top, top_bias)
        gl.store(before + at, old)
        count = gl.zeros([BM], gl.int64, gl.SliceLayout(1, TILE))
    else:
        old = gl.load(energy + at)
        count = gl.load(taken + at)

    lift += (source * steps * rows + m[:, None]) * HIDDEN + h[None, :]
    jitter += source * jitter_source + row
    if NOISY:
        rise, drift = gl.load(lift, mask=within, other=0.0), gl.load(jitter, mask=inside, other=0.0)
    for step in range(steps):
        lifted, moved = a0, point
        if NOISY:  # the origin: the sample plus noise; the next step's noise loads meanwhile
            lifted += rise.to(gl.float32)
            moved += drift
            coming = gl.minimum(step + 1, steps - 1)
            rise = gl.load(lift + coming * rows * HIDDEN, mask=within, other=0.0)
            drift = gl.load(jitter + coming * jitter_step, mask=inside, other=0.0)
        # The energy at the origin, and its slope.
        s0 = _quick_sigmoid(lifted)
        of_hidden.store((lifted * s0).to(HALF))
        a1 = _times(of_hidden, w1, none_n, BH, PIECE) + bias
        s1 = _sigmoid(a1)
        value = _value(a1, s1, top, top_bias)
        slope = (value * (1 - value))[:, None] * top[None, :] * (s1 * (1 + a1 * (1 - s1)))
        of_narrow.store(slope.to(HALF))
        back = _times(of_narrow, w1.permute((1, 0)), none_h, NARROW, PIECE)
        of_hidden.store((back * (s0 * (1 + lifted * (1 - s0)))).to(HALF))
        # The gradient step: dE/dx, clipped and scaled.
        total = _times(of_hidden, w0.permute((1, 0)), none_d, BH, PIECE)
        move = gl.minimum(gl.maximum(total, -clip), clip) * scale
        # The proposal, and its energy.
        of_dim.store(move.to(HALF))
        proposal = _times(of_dim, w0, lifted, BD, PIECE)
        of_hidden.store((proposal * _quick_sigmoid(proposal)).to(HALF))
        a1 = _times(of_hidden, w1, none_n, BH, PIECE) + bias
        new = _value(a1, _sigmoid(a1), top, top_bias)
        accepted = (new - new) == 0.0 if ALWAYS else new <= old
        old = gl.where(accepted, new, old)
        count += accepted.to(gl.int64)
        if ORIGINS:
            gl.store(origins + (step * sources + source) * rows * DIM + row, moved, mask=inside)
        point = gl.where(accepted[:, None], moved + move, point)
        a0 = gl.where(accepted[:, None], proposal, a0)

    gl.store(x + source * rows * DIM + row, point, mask=inside)
    gl.store(state + place, a0, mask=within)
    gl.store(energy + at, old)
    gl.store(taken + at, count)
