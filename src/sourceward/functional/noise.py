"""Standard normal noise keyed by the sample, not by its place in a batch.

A stateful generator hands a row different noise when its neighbours change. Here each number is a pure
function of (key of the row, stream, position): a counter-based generator made of the SplitMix64 finaliser
(Steele, Lea & Flood 2014) and the Box-Muller transform. Integer arithmetic wraps alike on every device.
"""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def row_keys(rows: np.ndarray, seed: int = 0) -> Tensor:
    """A 64-bit key of each row's content and a seed: (batch,) int64.

    Example:
        >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
        >>> bool((row_keys(rows)[[1, 0]] == row_keys(rows[[1, 0]])).all())
        True
    """
    rows = np.ascontiguousarray(rows + 0.0)  # + 0.0 makes -0.0 and 0.0 one key
    salt = (int(seed) % 2**64).to_bytes(8, "little")
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8, key=salt).digest() for row in rows)
    return torch.from_numpy(np.frombuffer(digests, dtype=np.int64).copy())


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
    bits = _bits(keys, stream, draws * pairs).view(len(keys), draws, pairs).transpose(0, 1)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    scale = 2.0**-24
    low = (bits & 0xFFFFFF).to(real)
    high = ((bits >> 24) & 0xFFFFFF).to(real)
    radius = torch.sqrt(-2.0 * torch.log((low + 1.0) * scale))  # in (0, 1], so the logarithm is finite
    angle = (2.0 * math.pi * scale) * high
    pair = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)
    return pair[..., :dim].to(dtype)


def keyed_uniform(keys: Tensor, stream: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """One number in (0, 1] for each key: (batch,)."""
    return (((_bits(keys, stream, 1)[:, 0] & 0xFFFFFF) + 1).to(torch.float64) * 2.0**-24).to(dtype)


def _bits(keys: Tensor, stream: int, count: int) -> Tensor:
    """(batch, count) words of 64 bits, each a mix of key, stream and position."""
    position = torch.arange(1, count + 1, device=keys.device, dtype=torch.int64)
    offset = (_GOLDEN * (stream + 1) + 2**63) % 2**64 - 2**63  # wrapped to a signed 64-bit integer
    start = _mix(_mix(keys) + offset)
    return _mix(start.unsqueeze(1) + position * _GOLDEN)


def _mix(word: Tensor) -> Tensor:
    word = (word ^ _shift(word, 30)) * _MIX1
    word = (word ^ _shift(word, 27)) * _MIX2
    return word ^ _shift(word, 31)


def _shift(word: Tensor, by: int) -> Tensor:
    """Logical right shift; torch's is arithmetic."""
    return (word >> by) & ((1 << (64 - by)) - 1)
