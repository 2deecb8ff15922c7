"""The fused Langevin chain by Triton kernels: `kernel_langevin`, for CUDA and features of any width.

Narrow features use one kernel for all steps (`resident`) where it fits, others the kernels of `wide` for each
step. Products are float16 with float32 sums (weights and activations are small, so its eight times finer grid
beats the range of bfloat16); the state stays float32. Captured in a CUDA graph (`_util.graphs`) the launches
cost next to nothing. `samplers.chain` imports this module if Triton is installed, and checks its results once
before use.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from sourceward.functional.chain import WIDE, ChainWeights, HalfWeights, Workspace, half_product
from sourceward.samplers.base import StepSettings
from sourceward.samplers.chain import Normals
from sourceward.samplers.cuda import wide
from sourceward.samplers.cuda.kernel_noise import KeyedNormals, drawn, row_keys
from sourceward.samplers.run import Chain, Record

__all__ = ["KeyedNormals", "fits", "is_narrow", "kernel_langevin", "row_keys"]

ROWS = 16
"""Rows of the smallest tile of a tensor core product."""

COLUMNS = 64
"""Columns of a block where no large matrix is read."""

NOISE_ROWS = 2048


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


def is_narrow(weights: ChainWeights, record: Record) -> bool:
    """Whether one kernel takes all steps, and not those of `wide`."""
    from sourceward.samplers.cuda import resident

    return resident.fits(weights, record)


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
    a = _start(weights, half, feature, bias)
    energy = weights.energy(a) if not num_steps else _rounded_energy(weights, half, a)
    if not num_steps:
        steps = torch.zeros_like(energy, dtype=torch.int64)
        points, values = (feature[None], energy[None]) if record is True else (None, None)
        return Chain(feature, energy, energy, steps, points, values)
    sources, rows, dim = feature.shape
    taken = torch.zeros_like(energy, dtype=torch.int32)
    # Two buffers, one to read and one to write; one for each step if all are recorded.
    count = num_steps + 1 if record else 2
    xs, energies = feature.new_empty(count, sources, rows, dim), energy.new_empty(count, sources, rows)
    xs[0], energies[0] = feature, energy
    a_in, a_out = a, torch.empty_like(a)
    together = max(1, NOISE_ROWS // rows)
    noise = _noise(half, feature, settings, normals, 0, min(together, num_steps))
    origin = a if noise is None else a + noise.lift(0)
    step = _Step(weights, half, settings, origin, checked)
    jitters = [] if noise is None else [noise.jitter]
    for k in range(num_steps):
        here, there = (k, k + 1) if record else (k % 2, (k + 1) % 2)
        following = noise
        if noise is not None and (k + 1) % together == 0 and k + 1 < num_steps:
            ahead = min(together, num_steps - k - 1)
            following = _noise(half, feature, settings, normals, k + 1, ahead)
            assert following is not None
            jitters.append(following.jitter)
        above = None if following is None else following.lift((k + 1) % together % len(following.jitter))
        beside = None if noise is None else noise.jitter[k % together]
        step.propose()
        step.decide(energies[here], energies[there], taken)
        step.go_on(xs[here], xs[there], a_in, a_out, beside, above, more=k + 1 < num_steps)
        noise, a_in, a_out = following, a_out, a_in
    last = num_steps if record else num_steps % 2
    origins = None
    if record:
        origins = xs[:-1] if not jitters else xs[:-1] + torch.cat(jitters)
    points, values = (xs, energies) if record is True else (None, None)
    return Chain(xs[last], energy, energies[last], taken.long(), points, values, origins)


class _Step:
    """The kernels of one step, and the memory between them.

    Args:
        weights, half: of all sources.
        settings: of the step.
        origin: a0 where the first step starts, noise included: (sources, rows, hidden).
        checked: refuse steps that raise the energy.
    """

    def __init__(
        self, weights: ChainWeights, half: HalfWeights, settings: StepSettings, origin: Tensor, checked: bool
    ) -> None:
        self.weights, self.half, self.settings, self.checked = weights, half, settings, checked
        sources, rows, hidden = origin.shape
        self.dim, self.hidden, self.narrow = weights.up.shape[1], hidden, weights.out.shape[-1]
        self.blocks = triton.cdiv(max(self.dim, hidden), COLUMNS)
        self.tiles = _tiles(rows, max(self.dim, hidden), origin.device)
        self.up_blocks = triton.cdiv(hidden, self.tiles.columns)
        dtype = half.up.dtype
        self.origin, self.proposal = origin, torch.empty_like(origin)
        self.move = origin.new_empty(sources, rows, self.dim, dtype=dtype)
        self.back = Workspace(weights, origin).backward_to_first(origin)[1].to(dtype)
        self.sums = origin.new_empty(sources, max(self.blocks, self.up_blocks), rows, self.narrow)
        self.slope = origin.new_empty(sources, rows, self.narrow, dtype=dtype)
        self.accepted = torch.empty(sources, rows, dtype=torch.int32, device=origin.device)
        self.rows, self.sources = rows, sources
        self.top = weights.narrow_bias, weights.out, weights.out_bias

    def propose(self) -> None:
        """The gradient step, and a0 at its end."""
        self._multiply(self.back, self.half.down, self.move, down=True)
        self._multiply(self.move, self.half.up, self.proposal, down=False)

    def decide(self, energy_in: Tensor, energy_out: Tensor, taken: Tensor) -> None:
        wide.decide[(self.rows, self.sources)](
            self.sums, self.up_blocks, energy_in, energy_out, taken, self.accepted, *self.top, self.rows,
            ALWAYS=not self.checked, NARROW=self.narrow, TILES=32,
        )  # fmt: skip

    def go_on(
        self, x_in: Tensor, x_out: Tensor, a_in: Tensor, a_out: Tensor, jitter: Tensor | None,
        lift: Tensor | None, more: bool,
    ) -> None:  # fmt: skip
        """Take what was accepted; then dE/da0 at the origin of the next step, if there is one."""
        noisy = jitter is not None and lift is not None
        near, above = (jitter, lift) if jitter is not None and lift is not None else (x_in, a_in)
        stride = near.stride(0) if noisy and len(near) > 1 else 0
        near_rows = self.tiles.near
        grid = (self.rows // near_rows, self.blocks, self.sources)
        wide.go_on[grid](
            self.accepted, self.proposal, a_in, a_out, self.origin, above, above.stride(0), self.move, near,
            stride, x_in, x_out, self.half.narrow_up, self.sums, self.rows, self.dim, self.hidden,
            NOISY=noisy, MORE=more, NARROW=self.narrow, BM=near_rows, BK=COLUMNS,
        )  # fmt: skip
        if not more:
            return
        wide.slope[(self.rows, self.sources)](
            self.sums, self.blocks, self.slope, *self.top, self.rows, NARROW=self.narrow, TILES=32
        )
        wide.backward[(self.rows // near_rows, triton.cdiv(self.hidden, COLUMNS), self.sources)](
            self.slope, self.half.narrow_down, self.origin, self.back, self.rows, self.hidden,
            NARROW=self.narrow, BM=near_rows, BK=COLUMNS,
        )  # fmt: skip

    def _multiply(self, left: Tensor, right: Tensor, out: Tensor, down: bool) -> None:
        inner, cols, tiles = left.shape[-1], right.shape[-1], self.tiles
        grid = (triton.cdiv(self.rows, tiles.rows), triton.cdiv(cols, tiles.columns), self.sources)
        wide.product[grid](
            left, right, self.origin, out, self.half.narrow_up, self.sums, self.rows, inner, cols,
            self.settings.clip, -self.settings.step_size, DOWN=down, NARROW=self.narrow,
            BM=tiles.rows, BN=tiles.columns, BK=tiles.inner, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip


class _Noise:
    """Noise of several steps: what is added to x, (steps, sources or 1, rows, dim), and to a0."""

    def __init__(self, jitter: Tensor, lifted: Tensor) -> None:
        self.jitter, self.lifted = jitter, lifted

    def lift(self, step: int) -> Tensor:
        return self.lifted[:, step]


def _noise(
    half: HalfWeights, feature: Tensor, settings: StepSettings, normals: Normals, k: int, n: int
) -> _Noise | None:
    if not settings.noise_std:
        return None
    jitter, rounded = drawn(normals, k, n, settings.noise_std, half.up.dtype)
    flat = rounded.transpose(0, 1).flatten(1, 2).expand(len(feature), -1, -1)
    return _Noise(jitter, torch.bmm(flat, half.up).unflatten(1, (n, -1)))


def _rounded_energy(weights: ChainWeights, half: HalfWeights, a0: Tensor) -> Tensor:
    """E as `_accept` computes it: energies that are compared must be rounded alike."""
    rounded = torch.nn.functional.silu(a0).to(half.up.dtype)
    a1 = rounded.float() @ half.narrow_up.float() + weights.narrow_bias
    return torch.sigmoid((torch.nn.functional.silu(a1) * weights.out).sum(-1) + weights.out_bias)


class Tiles(NamedTuple):
    """How the work of a step is divided among programs."""

    rows: int
    columns: int
    inner: int
    """Of a tile of a large product."""
    warps: int = 4
    stages: int = 4
    near: int = ROWS
    """Rows of a tile where no large matrix is read."""


LARGE = 160 << 10
"""Bytes of shared memory from which a multiprocessor has room for the tiles of many rows."""


def _tiles(rows: int, width: int, device: torch.device) -> Tiles:
    """Small tiles for few rows, so that all multiprocessors have work. Large ones read every weight once, and
    the rows less often: many rows wait for the cache."""
    from sourceward.samplers.cuda.resident import shared_memory

    if rows <= 16:
        return Tiles(16, 32, 128)
    if rows <= 32 or width <= 1024:
        return Tiles(32 if rows % 32 == 0 else 16, 64, 64)
    if rows % 128 == 0 and shared_memory(device) >= LARGE:
        return Tiles(128, 128, 64, warps=8, near=64)
    return Tiles(64 if rows % 64 == 0 else 16, 64, 64)


def _start(weights: ChainWeights, half: HalfWeights, feature: Tensor, bias: Tensor) -> Tensor:
    """a0 at the start of a chain."""
    if feature.is_cuda and feature.shape[-1] > WIDE:
        return half_product(feature, half.up).add_(bias)
    return weights.first(feature, bias)
