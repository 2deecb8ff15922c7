"""Reading ahead: the next chunk is read, and on its way to the device, while this one is computed."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

C = TypeVar("C")
R = TypeVar("R")


def ahead(read: Callable[[C], R], chunks: Iterable[C]) -> Iterator[R]:
    """`read` of each chunk, in order. No more than one is read before it is asked for.

    >>> list(ahead(sum, [[1, 2], [3, 4]]))
    [3, 7]
    """
    with ThreadPoolExecutor(1) as reader:
        coming: Future[R] | None = None
        for chunk in chunks:
            ready = None if coming is None else (coming.result(),)
            coming = reader.submit(read, chunk)
            if ready is not None:
                yield ready[0]
        if coming is not None:
            yield coming.result()


def send(rows: Tensor, device: torch.device) -> Tensor:
    """Rows on the device. Pinned memory and a stream of its own: the copy waits for no kernel, and no kernel
    for the copy."""
    if device.type != "cuda" or rows.is_cuda:
        return rows.to(device)
    copying = _stream(device)
    with torch.cuda.stream(copying):
        there = rows.pin_memory().to(device, non_blocking=True)
    copying.synchronize()
    return there


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all copies: memory that a stream has had, another one does not get."""
    return torch.cuda.Stream(device)
