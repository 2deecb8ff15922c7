"""Matrix products whose rows do not depend on how many rows there are, to the last bit.

BLAS picks its kernel, and how it cuts the sum, by the shape of the whole problem: a sample's last bits then
depend on its neighbours. On a CPU four habits prevent that: the right factor is contiguous, the sum is cut
into pieces of our own, very small problems get more rows, and narrow ones more columns. Functions of single
numbers are cut, too: each thread has its share, and what is left over of a share goes through another
exponential.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

INNER = 512
"""Length of the pieces of a long sum: BLAS cuts none so short."""

COLUMNS = 16
"""Fewest columns of a product. On AMD, MKL has a kernel for less than 12: how it sums a row depends on where
in memory the row's result begins."""

TILE = 512
"""Rows that `times` multiplies together on an accelerator: one shape, one kernel, the same bits."""


def matmul(rows: Tensor, weight: Tensor, plus: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """rows @ weight, or plus + rows @ weight; (..., m, k), (..., k, n) -> (..., m, n).

    `weight` should be contiguous: see `laid_out`. Three-dimensional products can be written to `out`. A
    weight in training stays as narrow as it is.
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


def laid_out(weight: Tensor) -> Tensor:
    """(..., n, k) as a layer stores it -> (..., k, n) as `matmul` likes it: transposed and contiguous."""
    return weight.detach().mT.contiguous()


GRAIN = 32_768
"""Numbers that torch gives a thread before it asks another."""


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of tensors of one shape, together all of them: nothing is left over of any thread's share.

    >>> sum(len(piece) for (piece,) in pieces(torch.zeros(2 * GRAIN + 64)))
    65600
    """
    first, threads = tensors[0], torch.get_num_threads()
    if first.device.type != "cpu" or first.numel() <= GRAIN or threads == 1:
        yield tensors
    elif all(tensor.is_contiguous() for tensor in tensors):
        even = first.numel() // (threads * GRAIN) * threads * GRAIN  # every thread has as much
        whole = first.numel() // GRAIN * GRAIN  # fewer threads, each with a grain
        lengths = [even, whole - even, first.numel() - whole]
        flat = [tensor.view(-1).split(lengths) for tensor in tensors]
        yield from (piece for piece in zip(*flat) if len(piece[0]))
    else:
        for parts in zip(*tensors):
            yield from pieces(*parts)


def by_number(function: Callable[[Tensor], Tensor], numbers: Tensor) -> Tensor:
    """`function` of every number; in `pieces`, but for gradients."""
    if numbers.requires_grad and torch.is_grad_enabled():
        return function(numbers)
    found = [function(piece) for (piece,) in pieces(numbers.contiguous())]
    return (found[0] if len(found) == 1 else torch.cat(found)).view(numbers.shape)


def row_multiple(*widths: int) -> int:
    """Pad batches of features to a multiple of this many rows, where layers are as wide as `widths`.

    One row alone is a matrix-vector product, another kernel; and torch multiplies matrices by hand below 400
    products in all. Two classes and a width reach that with 200 / width rows. What is left over when
    numbers are taken 32 at a time goes through another exponential: nothing may be.

    >>> row_multiple(512), row_multiple(6), row_multiple(100)
    (4, 64, 8)
    """
    multiple = 4
    while any(multiple * width < 200 or multiple * width % 32 for width in widths):
        multiple *= 2
    return multiple


def times(rows: Tensor, weight: Tensor) -> Tensor:
    """rows @ weight in full precision, whatever runs around it; (..., m, k), (k, n) -> (..., m, n).

    What a sample's keys are made of comes from here: another last bit would be other noise.

    >>> times(torch.ones(1, 3), torch.eye(3))
    tensor([[1., 1., 1.]])
    """
    flat, cpu = rows.reshape(-1, rows.shape[-1]), rows.device.type == "cpu"
    missing = -len(flat) % (row_multiple(rows.shape[-1]) if cpu else TILE)
    with torch.autocast(rows.device.type, enabled=False):
        flat = torch.nn.functional.pad(flat.float(), (0, 0, 0, missing)) if missing else flat.float()
        parts = [matmul(part, weight) for part in ((flat,) if cpu else flat.split(TILE))]
        product = parts[0] if len(parts) == 1 else torch.cat(parts)
        return product[: len(flat) - missing].view(*rows.shape[:-1], weight.shape[-1])


def _narrow(rows: Tensor, weight: Tensor, plus: Tensor | None, out: Tensor | None) -> Tensor:
    """With columns of zeros, and without them again: contiguous, as functions of single numbers want it."""
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
