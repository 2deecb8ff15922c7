"""Prefetching: read the next chunk, and copy it to the device, while this one is computed."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

C = TypeVar("C")
R = TypeVar("R")


def prefetch(read: Callable[[C], R], chunks: Iterable[C]) -> Iterator[R]:
    """Yield `read(chunk)` of each chunk, in order, at most one chunk ahead of the consumer.

    >>> list(prefetch(sum, [[1, 2], [3, 4]]))
    [3, 7]
    """
    with ThreadPoolExecutor(1) as reader:
        pending: Future[R] | None = None
        for chunk in chunks:
            ready = None if pending is None else (pending.result(),)
            pending = reader.submit(read, chunk)
            if ready is not None:
                yield ready[0]
        if pending is not None:
            yield pending.result()


def send(rows: Tensor, device: torch.device) -> Tensor:
    """Copy rows to the device, through pinned memory on a separate CUDA stream: the copy overlaps with
    kernels."""
    if device.type != "cuda" or rows.is_cuda:
        return rows.to(device)
    stream = _copy_stream(device)
    with torch.cuda.stream(stream):
        copied = rows.pin_memory().to(device, non_blocking=True)
    stream.synchronize()
    return copied


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all copies. One is enough, and the allocator reuses memory per stream."""
    return torch.cuda.Stream(device)
