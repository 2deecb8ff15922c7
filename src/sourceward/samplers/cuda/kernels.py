"""The fused Langevin chain as three Triton kernels per step, for CUDA and features of any width.

`_product` multiplies by Wx on the way down (gradient, clip, scale) and on the way up (what the step adds to
a0); `_accept` computes the energy of the proposal, accepts or refuses it, and runs the accepted points'
backward pass through the two upper layers for the next step. Products are float16 with float32 sums (weights
and activations are small, so its eight times finer grid beats the range of bfloat16); the state stays
float32. Captured in a CUDA graph (`_util.graphs`) the launches cost next to nothing.

Narrow features use the faster kernels of `resident` where they fit. `samplers.chain` imports this module if
Triton is installed, and checks its results once before use.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sourceward.functional.chain import ChainWeights, HalfWeights, Workspace
from sourceward.samplers.base import StepSettings
from sourceward.samplers.chain import Normals
from sourceward.samplers.cuda.kernel_noise import KeyedNormals, row_keys
from sourceward.samplers.run import Chain, Record

__all__ = ["KeyedNormals", "fits", "kernel_langevin", "row_keys"]

ROWS = 16
"""Rows of the smallest tile of a tensor core product."""

NOISE_ROWS = 2048


@triton.jit
def _product(  # type: ignore[no-untyped-def]
    left, right, plus, out, rows, inner, cols, clip, scale,
    CLIP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = scale * clip(left @ right), or plus + left @ right; one source along the last grid axis."""
    source = tl.program_id(2)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    left += source * rows * inner
    right += source * inner * cols
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, inner, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(left + m[:, None] * inner + k[None, :], mask=k[None, :] < inner, other=0.0)
        keep = (k[:, None] < inner) & (n[None, :] < cols)
        b = tl.load(right + k[:, None] * cols + n[None, :], mask=keep, other=0.0)
        total = tl.dot(a.to(b.dtype), b, total)
    offset = source * rows * cols + m[:, None] * cols + n[None, :]
    inside = (m[:, None] < rows) & (n[None, :] < cols)
    if CLIP:
        total = tl.minimum(tl.maximum(total, -clip), clip) * scale
    else:
        total += tl.load(plus + offset, mask=inside, other=0.0)
    tl.store(out + offset, total, mask=inside)


@triton.jit
def _accept(  # type: ignore[no-untyped-def]
    proposal, a_in, a_out, origin, back, lift, lift_stride, move, jitter, jitter_stride, x_in, x_out,
    energy_in, energy_out, taken, narrow_up, narrow_down, narrow_bias, out, out_bias, rows, dim, hidden,
    ALWAYS: tl.constexpr, NOISY: tl.constexpr, MORE: tl.constexpr, NARROW: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Accept or refuse the proposals, then compute a0 and dE/da0 at the origin of the next step."""
    source = tl.program_id(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    r = tl.arange(0, NARROW)
    at = source * rows + m
    up = narrow_up + source * hidden * NARROW
    down = narrow_down + source * NARROW * hidden
    bias = tl.load(narrow_bias + source * NARROW + r)
    top = tl.load(out + source * NARROW + r)
    top_bias = tl.load(out_bias + source)

    a1 = tl.zeros((BM, NARROW), dtype=tl.float32)
    for start in range(0, hidden, BK):
        k = start + tl.arange(0, BK)
        a0 = tl.load(proposal + at[:, None] * hidden + k[None, :], mask=k[None, :] < hidden, other=0.0)
        w = tl.load(up + k[:, None] * NARROW + r[None, :], mask=k[:, None] < hidden, other=0.0)
        a1 = tl.dot((a0 * tl.sigmoid(a0)).to(w.dtype), w, a1)
    a1 += bias[None, :]
    new = tl.sigmoid(tl.sum(a1 * tl.sigmoid(a1) * top[None, :], axis=1) + top_bias)
    old = tl.load(energy_in + at)
    accepted = (new - new) == 0.0 if ALWAYS else new <= old
    tl.store(energy_out + at, tl.where(accepted, new, old))
    tl.store(taken + at, tl.load(taken + at) + accepted.to(tl.int32))

    for start in range(0, dim, BK):
        k = start + tl.arange(0, BK)
        offset = at[:, None] * dim + k[None, :]
        inside = k[None, :] < dim
        x = tl.load(x_in + offset, mask=inside, other=0.0)
        y = x + tl.load(move + offset, mask=inside, other=0.0)
        if NOISY:
            near = jitter + source * jitter_stride + m[:, None] * dim + k[None, :]
            y += tl.load(near, mask=inside, other=0.0)
        tl.store(x_out + offset, tl.where(accepted[:, None], y, x), mask=inside)

    if MORE:
        a1 = tl.zeros((BM, NARROW), dtype=tl.float32)
        for start in range(0, hidden, BK):
            k = start + tl.arange(0, BK)
            offset = at[:, None] * hidden + k[None, :]
            inside = k[None, :] < hidden
            fresh = tl.load(proposal + offset, mask=inside, other=0.0)
            a0 = tl.where(accepted[:, None], fresh, tl.load(a_in + offset, mask=inside, other=0.0))
            tl.store(a_out + offset, a0, mask=inside)
            if NOISY:
                above = lift + source * lift_stride + m[:, None] * hidden + k[None, :]
                a0 += tl.load(above, mask=inside, other=0.0).to(tl.float32)
            w = tl.load(up + k[:, None] * NARROW + r[None, :], mask=k[:, None] < hidden, other=0.0)
            a1 = tl.dot((a0 * tl.sigmoid(a0)).to(w.dtype), w, a1)
        a1 += bias[None, :]
        s1 = tl.sigmoid(a1)
        value = tl.sigmoid(tl.sum(a1 * s1 * top[None, :], axis=1) + top_bias)
        slope = (value * (1 - value))[:, None] * top[None, :] * (s1 * (1 + a1 * (1 - s1)))
        for start in range(0, hidden, BK):
            k = start + tl.arange(0, BK)
            offset = at[:, None] * hidden + k[None, :]
            inside = k[None, :] < hidden
            fresh = tl.load(proposal + offset, mask=inside, other=0.0)
            a0 = tl.where(accepted[:, None], fresh, tl.load(a_in + offset, mask=inside, other=0.0))
            if NOISY:
                above = lift + source * lift_stride + m[:, None] * hidden + k[None, :]
                a0 += tl.load(above, mask=inside, other=0.0).to(tl.float32)
            tl.store(origin + offset, a0, mask=inside)
            w = tl.load(down + r[:, None] * hidden + k[None, :], mask=k[None, :] < hidden, other=0.0)
            s0 = tl.sigmoid(a0)
            b = tl.dot(slope.to(w.dtype), w) * (s0 * (1 + a0 * (1 - s0)))
            tl.store(back + offset, b.to(back.dtype.element_ty), mask=inside)


def fits(weights: ChainWeights, feature: Tensor) -> bool:
    """Whether the kernels support these shapes."""
    narrow = weights.out.shape[-1]
    power = narrow & (narrow - 1) == 0
    return (
        feature.dtype == torch.float32
        and feature.shape[1] > 0
        and feature.shape[1] % ROWS == 0
        and power
        and narrow >= ROWS
    )


@torch.no_grad()
def kernel_langevin(
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
    """`fused_langevin` by kernels; call it only if `fits`."""
    from sourceward.samplers.cuda import resident

    if num_steps and resident.fits(weights, record):
        return resident.resident_langevin(
            weights, feature, bias, settings, num_steps, normals, checked=checked, record=record
        )
    half = weights.half if weights.half is not None else weights.halved()
    a = weights.first(feature, bias)
    energy = weights.energy(a) if not num_steps else _rounded_energy(weights, half, a)
    if not num_steps:
        steps = torch.zeros_like(energy, dtype=torch.int64)
        points, values = (feature[None], energy[None]) if record is True else (None, None)
        return Chain(feature, energy, energy, steps, points, values)
    sources, rows, dim = feature.shape
    hidden, narrow = a.shape[-1], weights.out.shape[-1]
    taken = torch.zeros_like(energy, dtype=torch.int32)
    # Two buffers, one to read and one to write; one for each step if all are recorded.
    count = num_steps + 1 if record else 2
    xs, energies = feature.new_empty(count, sources, rows, dim), energy.new_empty(count, sources, rows)
    xs[0], energies[0] = feature, energy
    a_pair = [a, torch.empty_like(a)]
    proposal, move = torch.empty_like(a), feature.new_empty(sources, rows, dim)
    tiles = _tiles(rows, max(dim, hidden))
    together = max(1, NOISE_ROWS // rows)
    noise = _noise(half, feature, settings, normals, 0, min(together, num_steps))
    origin = a if noise is None else a + noise.lift(0)
    back = Workspace(weights, origin).backward_to_first(origin)[1].to(half.up.dtype)
    jitters = [] if noise is None else [noise.jitter]
    for k in range(num_steps):
        here, there = (k, k + 1) if record else (k % 2, (k + 1) % 2)
        following, step = noise, k % together
        if noise is not None and (k + 1) % together == 0 and k + 1 < num_steps:
            ahead = min(together, num_steps - k - 1)
            following = _noise(half, feature, settings, normals, k + 1, ahead)
            assert following is not None
            jitters.append(following.jitter)
        _multiply(back, half.down, None, move, tiles, settings)
        _multiply(move, half.up, origin, proposal, tiles, settings)
        above = None if following is None else following.lift((k + 1) % together % len(following.jitter))
        beside = None if noise is None else noise.jitter[step]
        _accept[(rows // ROWS, sources)](
            proposal, a_pair[k % 2], a_pair[(k + 1) % 2], origin, back,
            proposal if above is None else above, 0 if above is None else above.stride(0), move,
            move if beside is None else beside,
            0 if beside is None or len(beside) == 1 else beside.stride(0), xs[here], xs[there],
            energies[here], energies[there], taken,
            half.narrow_up, half.narrow_down, weights.narrow_bias, weights.out, weights.out_bias,
            rows, dim, hidden,
            ALWAYS=not checked, NOISY=noise is not None,
            MORE=k + 1 < num_steps, NARROW=narrow, BM=ROWS, BK=64, num_warps=4, num_stages=3,
        )  # fmt: skip
        noise = following
    last = num_steps if record else num_steps % 2
    origins = None
    if record:
        origins = xs[:-1] if not jitters else xs[:-1] + torch.cat(jitters)
    points, values = (xs, energies) if record is True else (None, None)
    return Chain(xs[last], energy, energies[last], taken.long(), points, values, origins)


class _Noise:
    """Noise of several steps: what is added to x, (steps, sources or 1, rows, dim), and to a0."""

    def __init__(self, jitter: Tensor, lifted: Tensor) -> None:
        self.jitter, self.lifted = jitter, lifted

    def lift(self, step: int) -> Tensor:
        return self.lifted[:, step]


def _noise(
    half: Any, feature: Tensor, settings: StepSettings, normals: Normals, k: int, n: int
) -> _Noise | None:
    if not settings.noise_std:
        return None
    jitter = normals(k, n).mul_(settings.noise_std)
    flat = jitter.to(half.up.dtype).transpose(0, 1).flatten(1, 2).expand(len(feature), -1, -1)
    return _Noise(jitter, torch.bmm(flat, half.up).unflatten(1, (n, -1)))


def _rounded_energy(weights: ChainWeights, half: HalfWeights, a0: Tensor) -> Tensor:
    """E as `_accept` computes it: energies that are compared must be rounded alike."""
    rounded = torch.nn.functional.silu(a0).to(half.up.dtype)
    a1 = rounded.float() @ half.narrow_up.float() + weights.narrow_bias
    return torch.sigmoid((torch.nn.functional.silu(a1) * weights.out).sum(-1) + weights.out_bias)


def _multiply(
    left: Tensor, right: Tensor, plus: Tensor | None, out: Tensor, tiles: tuple[int, int, int], settings: Any
) -> None:
    (sources, rows, inner), cols = left.shape, right.shape[-1]
    bm, bn, bk = tiles
    grid = (triton.cdiv(rows, bm), triton.cdiv(cols, bn), sources)
    _product[grid](
        left, right, out if plus is None else plus, out, rows, inner, cols,
        settings.clip, -settings.step_size,
        CLIP=plus is None, BM=bm, BN=bn, BK=bk, num_warps=4, num_stages=4,
    )  # fmt: skip


def _tiles(rows: int, width: int) -> tuple[int, int, int]:
    """Sizes of tiles: small ones for few rows, so that all multiprocessors have work."""
    if rows <= 16:
        return 16, 32, 128
    if rows <= 32 or width <= 1024:
        return 32 if rows % 32 == 0 else 16, 64, 64
    return 64 if rows % 64 == 0 else 16, 64, 64
