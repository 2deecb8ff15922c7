"""Matrix products and elementwise functions whose rows do not depend on the number of rows, to the last bit.

BLAS picks its kernel, and how it splits a sum, by the shape of the whole problem, so the last bits of a
sample depend on the rest of its batch. On a CPU four rules prevent that: the right factor is contiguous, long
sums are split here into blocks of fixed length, very small problems are padded with rows, and narrow ones
with columns. Elementwise functions are split as well: torch gives each thread a range of numbers, and
computes the remainder of a range, which does not fill a vector register, by another exponential.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

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
    with torch.autocast(rows.device.type, enabled=False):
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
