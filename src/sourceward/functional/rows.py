"""Matrix products and elementwise functions whose rows do not depend on the number of rows, to the last bit.

BLAS picks its kernel, and how it splits a sum, by the shape of the whole problem, so the last bits of a
sample depend on the rest of its batch. On a CPU four rules prevent that: the right factor is contiguous, long
sums are split here into blocks of fixed length, very small problems are padded with rows, and narrow ones
with columns. Elementwise functions are split as well: torch gives each thread a range of numbers, and
computes the remainder of a range, which does not fill a vector register, by another exponential.

Noise is keyed by the sample for the same reason. A stateful generator gives a row different noise when the
rest of its batch changes. Here each number is a pure function of (key of the row, stream, position): a
counter-based generator made of the SplitMix64 finaliser (Steele, Lea & Flood 2014) and the Box-Muller
transform. Integer arithmetic wraps alike on every device.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.threads import one_thread

INNER = 512
"""Length of the blocks of a long sum: BLAS splits none of this length."""

COLUMNS = 16
"""Fewest columns of a product. On AMD, MKL has a kernel for fewer than 12 whose order of summation depends on
the memory address of the row's result."""

TILE = 512
"""Rows that `stable_matmul` multiplies together on an accelerator: one shape, one kernel, the same bits."""

GRAIN = 32_768
"""Numbers that torch gives to a thread before it uses another."""


def matmul(rows: Tensor, weight: Tensor, plus: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """rows @ weight, or plus + rows @ weight; (..., m, k), (..., k, n) -> (..., m, n).

    `weight` should be contiguous: see `transpose_contiguous`. Three-dimensional products can be written to
    `out`. A weight that requires grad is not padded.
    """
    if rows.device.type == "cpu" and weight.shape[-1] < COLUMNS and not weight.requires_grad:
        return _narrow(rows, weight, plus, out)
    if rows.device.type != "cpu" or rows.shape[-1] <= INNER:
        return _product(rows, weight, plus, out)
    for start in range(0, rows.shape[-1], INNER):
        stop = start + INNER
        plus = _product(rows[..., start:stop], weight[..., start:stop, :], plus, out)
    assert plus is not None
    return plus


def transpose_contiguous(weight: Tensor) -> Tensor:
    """(..., n, k) as a layer stores it -> (..., k, n) as `matmul` takes it, contiguous and detached."""
    return weight.detach().mT.contiguous()


def thread_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of tensors of one shape that partition them such that no thread's range has a remainder.

    >>> sum(len(chunk) for (chunk,) in thread_chunks(torch.zeros(2 * GRAIN + 64)))
    65600
    """
    first, threads = tensors[0], torch.get_num_threads()
    if first.device.type != "cpu" or first.numel() <= GRAIN or threads == 1:
        yield tensors
    elif all(tensor.is_contiguous() for tensor in tensors):
        even = first.numel() // (threads * GRAIN) * threads * GRAIN  # the same for every thread
        whole = first.numel() // GRAIN * GRAIN  # fewer threads, a grain each
        lengths = [even, whole - even, first.numel() - whole]
        flat = [tensor.view(-1).split(lengths) for tensor in tensors]
        yield from (chunk for chunk in zip(*flat) if len(chunk[0]))
    else:
        for parts in zip(*tensors):
            yield from thread_chunks(*parts)


def elementwise(function: Callable[[Tensor], Tensor], numbers: Tensor) -> Tensor:
    """`function` of every number, by `thread_chunks` unless a gradient is needed."""
    if (numbers.requires_grad and torch.is_grad_enabled()) or torch.compiler.is_exporting():
        return function(numbers)
    found = [function(chunk) for (chunk,) in thread_chunks(numbers.contiguous())]
    return (found[0] if len(found) == 1 else torch.cat(found)).view(numbers.shape)


def row_multiple(*widths: int) -> int:
    """The multiple to which the rows of a batch are padded, for layers of these widths.

    One row alone is a matrix-vector product, which is another kernel; and torch multiplies matrices by its
    own loop below 400 products in all, which two classes and a width reach with 200 / width rows. Numbers are
    processed 32 at a time, and a remainder would use another exponential.

    >>> row_multiple(512), row_multiple(6), row_multiple(100)
    (4, 64, 8)
    """
    multiple = 4
    while any(multiple * width < 200 or multiple * width % 32 for width in widths):
        multiple *= 2
    return multiple


def stable_matmul(rows: Tensor, weight: Tensor) -> Tensor:
    """rows @ weight in full precision, also under autocast; (..., m, k), (k, n) -> (..., m, n).

    The keys of a sample's noise are computed from its features: another last bit would be other noise.

    >>> stable_matmul(torch.ones(1, 3), torch.eye(3))
    tensor([[1., 1., 1.]])
    """
    if torch.compiler.is_exporting():  # a graph for any number of rows
        return rows.float() @ weight
    flat, cpu = rows.reshape(-1, rows.shape[-1]), rows.device.type == "cpu"
    missing = -len(flat) % (row_multiple(rows.shape[-1]) if cpu else TILE)
    # Also by one thread: with several, BLAS splits some narrow products otherwise.
    with torch.autocast(rows.device.type, enabled=False), one_thread() if cpu else nullcontext():
        flat = torch.nn.functional.pad(flat.float(), (0, 0, 0, missing)) if missing else flat.float()
        parts = [matmul(part, weight) for part in ((flat,) if cpu else flat.split(TILE))]
        product = parts[0] if len(parts) == 1 else torch.cat(parts)
        return product[: len(flat) - missing].view(*rows.shape[:-1], weight.shape[-1])


def _narrow(rows: Tensor, weight: Tensor, plus: Tensor | None, out: Tensor | None) -> Tensor:
    """The product with a weight padded by zero columns, which are removed again; contiguous."""
    columns = weight.shape[-1]
    wide = matmul(rows, torch.nn.functional.pad(weight, (0, COLUMNS - columns)))
    product = wide[..., :columns] if plus is None else plus + wide[..., :columns]
    return product.contiguous() if out is None else out.copy_(product)


def _product(rows: Tensor, weight: Tensor, plus: Tensor | None, out: Tensor | None) -> Tensor:
    if rows.dim() == weight.dim() == 3:
        if plus is None:
            return torch.bmm(rows, weight, out=out)
        return torch.baddbmm(plus, rows, weight, out=out)
    product = torch.matmul(rows, weight, out=out)
    return product if plus is None else plus + product


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def row_keys(rows: np.ndarray | Tensor, seed: int = 0) -> Tensor:
    """A 64-bit key of each row's content and a seed, on the rows' own device: (batch,) int64.

    Example:
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> bool((row_keys(rows)[[1, 0]] == row_keys(rows[[1, 0]])).all())
        True
    """
    rows = torch.as_tensor(rows).detach()
    rows = (rows + 0.0).contiguous()  # + 0.0 makes -0.0 and 0.0 one key
    size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()]
    words = rows.view(size).long()
    position = torch.arange(1, words.shape[1] + 1, device=rows.device, dtype=torch.int64)
    # Sums of integers do not depend on their order, so that every device finds the same key.
    content = _mix(_mix(words).add_(position * _GOLDEN)).sum(1)
    return _mix(_mix(content) + _wrapped(_GOLDEN * (int(seed) + 1)))


def _wrapped(word: int) -> int:
    """As a signed 64-bit integer."""
    return (word + 2**63) % 2**64 - 2**63


def keyed_normal(
    keys: Tensor, stream: int, dim: int, dtype: torch.dtype = torch.float32, draws: int = 1
) -> Tensor:
    """Standard normal numbers, one row of `dim` for each key and draw: (draws, batch, dim).

    Args:
        keys: (batch,) int64.
        stream: which independent stream, e.g. the number of the step.
        dim: numbers per row.
        draws: rows per key.
    """
    pairs = (dim + 1) // 2
    bits = _bits(keys, range(stream, stream + 1), draws * pairs)[0]
    return _normal(bits.view(len(keys), draws, pairs).transpose(0, 1), dim, dtype)


def keyed_normals(keys: Tensor, streams: range, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """`keyed_normal` of several streams at once: (streams, batch, dim)."""
    return _normal(_bits(keys, streams, (dim + 1) // 2), dim, dtype)


def keyed_uniform(keys: Tensor, stream: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """One number in (0, 1] for each key: (batch,)."""
    bits = _bits(keys, range(stream, stream + 1), 1)[0, :, 0]
    return (((bits & 0xFFFFFF) + 1).to(torch.float64) * 2.0**-24).to(dtype)


def _normal(bits: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Box-Muller: two numbers from each word, the cosines first."""
    real = torch.float64 if dtype == torch.float64 else torch.float32
    scale = 2.0**-24
    low = (bits & 0xFFFFFF).to(real)
    high = ((bits >> 24) & 0xFFFFFF).to(real)
    radius = low.add_(1.0).mul_(scale).log_().mul_(-2.0).sqrt_()  # of (0, 1], so the logarithm is finite
    angle = high.mul_(2.0 * math.pi * scale)
    pair = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)
    return pair[..., :dim].to(dtype)


def _bits(keys: Tensor, streams: range, count: int) -> Tensor:
    """(streams, batch, count) words of 64 bits, each a mix of key, stream and position."""
    options: dict[str, Any] = {"device": keys.device, "dtype": torch.int64}
    position = torch.arange(1, count + 1, **options)
    offset = torch.arange(streams.start + 1, streams.stop + 1, streams.step, **options) * _GOLDEN
    start = _mix(_mix(keys) + offset.unsqueeze(1))
    return _mix(start.unsqueeze(-1) + position * _GOLDEN)


def _mix(word: Tensor) -> Tensor:
    """The SplitMix64 finaliser."""
    word = _shift(word, 30).bitwise_xor_(word).mul_(_MIX1)
    word = _shift(word, 27).bitwise_xor_(word).mul_(_MIX2)
    return _shift(word, 31).bitwise_xor_(word)


def _shift(word: Tensor, by: int) -> Tensor:
    """Logical right shift; torch's is arithmetic."""
    return (word >> by).bitwise_and_((1 << (64 - by)) - 1)
