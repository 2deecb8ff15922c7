"""What a caller passes to a model: images in several forms, texts, or a feature matrix.

Padding, and the number of rows, change the kernels of a library and the last bits of a feature, and with them
the noise of a chain. So a text is never padded. On a CPU it is alone; on an accelerator texts of one length
go together, in batches of one size. The next chunk is read, and copied to the device, while this one is
computed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.data.decode import Geometry, decode_image, map_threads, resize_arrays
from sourceward.nn.alone import encode_alone

HOST = torch.device("cpu")
PLURAL = {"image": "images", "text": "texts", "features": "features"}
"""What a model reads, for messages."""


def read_images(items: Any, shape: Geometry, device: torch.device = HOST) -> Tensor:
    """Return uint8 (n, 3, height, width) from paths, PIL images, arrays, or one array or tensor of all."""
    if isinstance(items, Tensor):
        items = items.cpu().numpy()
    if isinstance(items, np.ndarray) and items.ndim == 4:
        return send(resize_arrays(items, shape), device)
    if len(items) > 1 and all(isinstance(item, str | Path) for item in items):
        read = map_threads(lambda row: read_image(items[row], shape), range(len(items)), None)
    else:
        read = (read_image(item, shape) for item in items)  # an open PIL image is not thread-safe
    return send(torch.stack([*read]), device)


def read_image(item: Any, shape: Geometry) -> Tensor:
    """Return one image as uint8 (3, height, width)."""
    if isinstance(item, Tensor) and item.ndim == 3:
        return resize_arrays(item[None].cpu().numpy(), shape)[0]
    try:
        if isinstance(item, np.ndarray) and item.ndim in (2, 3):  # gray, or colours last
            from PIL import Image

            return torch.from_numpy(decode_image(Image.fromarray(item), shape))
        return torch.from_numpy(decode_image(item, shape))
    except Exception as error:  # PIL raises different exceptions for each format
        what = f"'{item}'" if isinstance(item, str | Path) else describe(item)
        reason = str(error).removeprefix(f"{what} cannot be read: ").rstrip(".")
        raise InputError(f"Expected an image, but {what} cannot be read as one: {reason}.") from None


def items_of(inputs: Any) -> Any:
    """Return the inputs as a sequence; a single path, text or PIL image becomes a list of one."""
    inputs = [inputs] if isinstance(inputs, str | Path) or hasattr(inputs, "getpixel") else inputs
    if not hasattr(inputs, "__len__"):
        raise InputError(f"Expected a list of inputs, but got {describe(inputs)}.")
    return inputs


def is_matrix(inputs: Any) -> bool:
    """Return whether the inputs are a feature matrix: an array, a tensor, or a list of rows."""
    if isinstance(inputs, Tensor):
        return inputs.ndim == 2 and inputs.is_floating_point()
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 2 and inputs.dtype.kind in "fiuc"
    return (
        isinstance(inputs, list)
        and bool(inputs)
        and isinstance(inputs[0], list | np.ndarray)
        and (np.ndim(inputs[0]) == 1)
    )


def describe(inputs: Any) -> str:
    """Return the type of the inputs in words, for error messages."""
    if isinstance(inputs, np.ndarray | Tensor):
        return f"an array of shape {tuple(inputs.shape)}"
    if isinstance(inputs, list | tuple) and inputs:
        return f"a list of {type(inputs[0]).__name__}"
    return type(inputs).__name__


TEXTS = 32
"""Texts of a batch on an accelerator, the first repeated where there are fewer."""


def encode_texts(
    encode: Callable[[Any], Tensor],
    prepare: Callable[[list[str]], Mapping[str, Tensor]],
    texts: Sequence[str],
) -> Tensor:
    """Features (n, dim) of one or more texts, each as if it were the only one.

    Args:
        encode: from token tensors (rows, length) by name to features.
        prepare: from texts to token tensors, padded to the longest.
        texts: one or more.
    """
    tokens = [prepare([text]) for text in texts]
    first = next(iter(tokens[0].values()))
    if first.device.type == "cpu":
        return torch.cat(encode_alone([(encode, row) for row in tokens]))
    by_length: dict[int, list[int]] = defaultdict(list)
    for row, values in enumerate(tokens):
        by_length[next(iter(values.values())).shape[-1]].append(row)
    order, parts = [], []
    for rows in by_length.values():
        for start in range(0, len(rows), TEXTS):
            some = rows[start : start + TEXTS]
            filled = some + some[:1] * (TEXTS - len(some))
            batch = {name: torch.cat([tokens[row][name] for row in filled]) for name in tokens[0]}
            parts.append(encode(batch)[: len(some)])
            order += some
    return torch.cat(parts)[torch.tensor(order).argsort().to(first.device)]


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
