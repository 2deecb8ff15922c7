"""Whether a proposed step is taken: `always`, `energy_not_higher`, `metropolis`.

Each rule takes energies before and after and the log ratio of the proposal densities
log q(x|x') - log q(x'|x), all (sources, batch), and a uniform number, and returns a mask.
"""

from typing import Protocol

import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward._util.registry import Registry


class AcceptRule(Protocol):
    def __call__(
        self, before: Tensor, after: Tensor, log_ratio: Tensor | None, uniform: Tensor
    ) -> Tensor: ...


ACCEPT_RULES: Registry[AcceptRule] = Registry("accept rule")


@ACCEPT_RULES.register("always")
def always(before: Tensor, after: Tensor, log_ratio: Tensor | None, uniform: Tensor) -> Tensor:
    """Take every step, as the paper's text does."""
    return torch.isfinite(after)


@ACCEPT_RULES.register("energy_not_higher")
def energy_not_higher(before: Tensor, after: Tensor, log_ratio: Tensor | None, uniform: Tensor) -> Tensor:
    """Keep the old sample where the energy would rise, as the released code does."""
    return after <= before


@ACCEPT_RULES.register("metropolis")
def metropolis(before: Tensor, after: Tensor, log_ratio: Tensor | None, uniform: Tensor) -> Tensor:
    """Metropolis-Hastings: with a textbook step this is MALA, whose samples follow exp(-E) without bias."""
    if log_ratio is None:
        raise InputError(
            "Accept rule 'metropolis' needs a step with a known proposal density. Use sampler 'textbook'."
        )
    return uniform.log() <= before - after + log_ratio
