"""Standard normal noise keyed by the sample, not by its position in a batch.

A stateful generator gives a row different noise when the rest of its batch changes. Here each number is a
pure function of (key of the row, stream, position): a counter-based generator made of the SplitMix64
finaliser (Steele, Lea & Flood 2014) and the Box-Muller transform. Integer arithmetic wraps alike on every
device.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
