"""Batches of a stream of inputs: tensors, or dictionaries of token tensors."""

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from sourceward.adaptation.base import Inputs, Stream
from sourceward.functional import row_keys


def rebatch(inputs: Stream, size: int) -> Iterator[Any]:
    """Yield the rows of a stream in order, `size` at a time.

    >>> [len(batch) for batch in rebatch([torch.zeros(3, 1), torch.zeros(4, 1)], 5)]
    [5, 2]
    """
    rest: Any = None
    for piece in [inputs] if isinstance(inputs, Tensor | dict) else inputs:
        rest = piece if rest is None else concatenate_inputs([rest, piece])
        while _num_rows(rest) >= size:
            yield _take(rest, slice(None, size))
            rest = _take(rest, slice(size, None))
    if rest is not None and _num_rows(rest):
        yield rest


def concatenate_inputs(batches: list[Any]) -> Any:
    """Join batches by rows; token tensors are padded with zeros to the longest."""
    return reduce(_concatenate_two, batches)


def sample_generators(batch: Tensor, seed: int) -> Iterator[torch.Generator]:
    """Yield a generator for each sample, seeded by its values: its draws do not depend on its batch."""
    keys = row_keys(batch.detach().flatten(1).cpu().numpy(), seed) & torch.iinfo(torch.int64).max
    for key in keys.tolist():
        yield torch.Generator(batch.device).manual_seed(key)


def _num_rows(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)


def _take(inputs: Any, part: slice) -> Any:
    return {k: v[part] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[part]


def _concatenate_two(first: Any, second: Any) -> Any:
    if not isinstance(first, dict):
        return torch.cat([first, second])
    width = max(v.shape[1] for part in (first, second) for v in part.values())

    def padded(value: Tensor) -> Tensor:
        return nn.functional.pad(value, (0, width - value.shape[1]))

    return {name: torch.cat([padded(first[name]), padded(second[name])]) for name in first}
