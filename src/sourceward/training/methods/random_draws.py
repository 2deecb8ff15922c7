"""Random draws that several methods use, made on the device without waiting for it."""

import torch
from torch import Tensor


def beta(alpha: float, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` values of Beta(alpha, alpha), as X / (X + Y) of Gamma draws X and Y.

    The Gamma draws are float64: with a small alpha both may underflow to zero in float32.
    """
    shape = torch.full((2, count), alpha, dtype=torch.float64, device=generator.device)
    first, second = torch._standard_gamma(shape, generator=generator).clamp_min(1e-300)
    return (first / (first + second)).float()


def other_source_rows(domain: Tensor, sources: int, generator: torch.Generator) -> Tensor:
    """Draw for each row a row of another source; of its own where there is only one source.

    Args:
        domain: (batch,) source of each row: sorted, equally many rows of each.
        sources: number of sources.
        generator: of the draws.
    """
    rows = len(domain) // sources
    draw = torch.rand(2, len(domain), generator=generator, device=domain.device)
    offset = 1 + (draw[0] * (sources - 1)).long().clamp_max(max(sources - 2, 0))
    return (domain + offset) % sources * rows + (draw[1] * rows).long().clamp_max(rows - 1)


def permutation(count: int, generator: torch.Generator) -> Tensor:
    """Draw a random permutation of 0, ..., count - 1."""
    return torch.rand(count, generator=generator, device=generator.device).argsort()
