"""Noise keyed by the sample, and the keys, as one Triton kernel each instead of dozens."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from sourceward.samplers.chain import Normals

_GOLDEN = tl.constexpr(-7046029254386353131)
_MIX1 = tl.constexpr(-4658895280553007687)
_MIX2 = tl.constexpr(-7723592293110705685)
_ANGLE = tl.constexpr(2 * math.pi * 2.0**-24)
_UNIT = tl.constexpr(2.0**-24)


@triton.jit
def _mix(word):  # type: ignore[no-untyped-def]
    """SplitMix64, as in `functional.rows`; the masks make an arithmetic shift a logical one."""
    word = (word ^ ((word >> 30) & 0x3FFFFFFFF)) * _MIX1
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * _MIX2
    return word ^ ((word >> 31) & 0x1FFFFFFFF)


@triton.jit
def _normals(  # type: ignore[no-untyped-def]
    keys, out, rounded, scale, first, rows, dim, pairs, ROUNDED: tl.constexpr, BLOCK: tl.constexpr
):
    """Normals of one row and step: `scale` times what `functional.rows.keyed_normals` gives, stream 2 k."""
    row, step = tl.program_id(0), tl.program_id(1)
    stream = (2 * (first + step) + 1).to(tl.int64)
    start = _mix(_mix(tl.load(keys + row)) + stream * _GOLDEN)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    bits = _mix(start + (at + 1).to(tl.int64) * _GOLDEN)
    low, high = (bits & 0xFFFFFF).to(tl.float32), ((bits >> 24) & 0xFFFFFF).to(tl.float32)
    radius = tl.sqrt(-2.0 * tl.log((low + 1.0) * _UNIT)) * scale
    angle = high * _ANGLE
    offset, left, right = (step * rows + row) * dim + at, radius * tl.cos(angle), radius * tl.sin(angle)
    tl.store(out + offset, left, mask=at < pairs)
    tl.store(out + offset + pairs, right, mask=at + pairs < dim)
    if ROUNDED:
        tl.store(rounded + offset, left.to(rounded.dtype.element_ty), mask=at < pairs)
        tl.store(rounded + offset + pairs, right.to(rounded.dtype.element_ty), mask=at + pairs < dim)


class KeyedNormals:
    """The normals of `keyed_noise`, several steps by one kernel.

    Args:
        keys: (batch,) int64.
        like: the starts, (sources, batch, dim).
    """

    def __init__(self, keys: Tensor, like: Tensor) -> None:
        self.keys, self.shape = keys, like.shape[1:]

    def __call__(self, k: int, n: int) -> Tensor:
        """Normals of steps k to k + n: (n, 1, batch, dim)."""
        return self._draw(k, n, 1.0, None)[0]

    def jitter(self, k: int, n: int, std: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`std` times the normals, and the same rounded to `dtype`."""
        return self._draw(k, n, std, dtype)

    def _draw(self, k: int, n: int, scale: float, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
        rows, dim = self.shape
        out = torch.empty(n, 1, rows, dim, device=self.keys.device)
        rounded = out if dtype is None else torch.empty_like(out, dtype=dtype)
        pairs, block = (dim + 1) // 2, 256
        _normals[(rows, n, triton.cdiv(pairs, block))](
            self.keys, out, rounded, scale, k, rows, dim, pairs, ROUNDED=dtype is not None, BLOCK=block
        )
        return out, rounded


def drawn(normals: Normals, k: int, n: int, std: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The noise of n steps, (steps, sources or 1, rows, dim), and the same in the precision of products."""
    if isinstance(normals, KeyedNormals):
        return normals.jitter(k, n, std, dtype)
    jitter = normals(k, n).mul_(std)
    return jitter, jitter.to(dtype)


@triton.jit(do_not_specialize=["seed"])
def _keys(rows, out, dim, seed, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The key of one row: what `functional.row_keys` gives."""
    row, total = tl.program_id(0), tl.zeros((BLOCK,), dtype=tl.int64)
    for start in range(0, dim, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(rows + row * dim + at, mask=at < dim, other=0.0)
        value = tl.where(value == 0.0, 0.0, value)  # -0.0 and 0.0 have one key
        word = _mix(value.to(tl.int32, bitcast=True).to(tl.int64)) + (at + 1).to(tl.int64) * _GOLDEN
        total += tl.where(at < dim, _mix(word), 0)
    tl.store(out + row, _mix(_mix(tl.sum(total, axis=0)) + (seed.to(tl.int64) + 1) * _GOLDEN))


def row_keys(rows: Tensor, seed: int = 0) -> Tensor:
    """`functional.row_keys` of float32 rows (batch, dim) by one kernel."""
    rows = rows.detach().contiguous()
    out = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    if len(rows):
        _keys[(len(rows),)](rows, out, rows.shape[1], seed, BLOCK=256)
    return out
