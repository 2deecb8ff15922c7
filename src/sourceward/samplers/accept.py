"""Accept rules: which proposed steps a sampler takes.

Energies before and after the step are (sources, batch); every rule returns a mask of that shape. No rule
accepts a step to a point whose energy is not finite.
"""

import torch
from torch import Tensor


def always(before: Tensor, after: Tensor) -> Tensor:
    """Accept every step, as the paper's text does."""
    return torch.isfinite(after)


def energy_not_higher(before: Tensor, after: Tensor) -> Tensor:
    """Refuse a step that raises the energy, as the released code does."""
    return after <= before


def metropolis(before: Tensor, after: Tensor, log_ratio: Tensor, uniform: Tensor) -> Tensor:
    """Metropolis-Hastings: accept with probability min(1, exp(before - after + log_ratio)).

    Args:
        before, after: energies.
        log_ratio: log q(x|x') - log q(x'|x) of the proposal density q, (sources, batch).
        uniform: numbers in (0, 1], (sources, batch).
    """
    return uniform.log() <= before - after + log_ratio
