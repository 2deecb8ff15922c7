"""Random numbers that several methods draw, on the device and without waiting for it."""

from typing import Any

import torch
from torch import Tensor

from sourceward._util.errors import InputError


def beta(alpha: float, count: int, generator: torch.Generator) -> Tensor:
    """`count` draws of Beta(alpha, alpha): X / (X + Y) for Gamma draws X, Y.

    In float64, where a small alpha does not send both to zero.
    """
    shape = torch.full((2, count), alpha, dtype=torch.float64, device=generator.device)
    first, second = torch._standard_gamma(shape, generator=generator).clamp_min(1e-300)
    return (first / (first + second)).float()


def images(inputs: Any, method: str) -> Tensor:
    """The inputs, refused where they are no images."""
    if not isinstance(inputs, Tensor) or inputs.ndim != 4:
        raise InputError(f"Fine-tuning by {method!r} mixes images, but the data holds texts. Use 'erm'.")
    return inputs


def partners(domain: Tensor, sources: int, generator: torch.Generator) -> Tensor:
    """For each row a row of another source, drawn at random; of its own where there is only one source.

    Rows are sorted by source, as many of each.
    """
    rows = len(domain) // sources
    draw = torch.rand(2, len(domain), generator=generator, device=domain.device)
    away = 1 + (draw[0] * (sources - 1)).long().clamp_max(max(sources - 2, 0))
    return (domain + away) % sources * rows + (draw[1] * rows).long().clamp_max(rows - 1)


def shuffle(count: int, generator: torch.Generator) -> Tensor:
    """A random order."""
    return torch.rand(count, generator=generator, device=generator.device).argsort()
