"""The contract of an adapter, and what it returns.

An adapter turns (network, features) into an answer. It may move the features; it may not change the network.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

from sourceward._registry import Registry
from sourceward.nn import Network

MOVED = "moved"
KEPT_ENERGY_NOT_LOWER = "kept_energy_not_lower"
KEPT_GATE = "kept_gate"
NONFINITE = "nonfinite"

STATUS_TEXT = {
    MOVED: "At least one source moved the sample.",
    KEPT_ENERGY_NOT_LOWER: "No source found a step of lower energy; the answer is the unadapted one. "
    "A smaller `step_size` may help.",
    KEPT_GATE: "Adaptation was off for this sample; the answer is the unadapted one.",
    NONFINITE: "The chain left the finite numbers; the answer is the unadapted one. "
    "Use a smaller `step_size`.",
}


@dataclass(frozen=True)
class Adapted:
    """The answer for n samples. The first axis is always the sample."""

    features: np.ndarray
    """(n, sources, dim): where each source's chain ended, in the units of the input."""
    probabilities: np.ndarray
    """(n, classes): the vote."""
    per_source: np.ndarray
    """(n, sources, classes): each source's own answer."""
    energy_before: np.ndarray
    """(n, sources)."""
    energy_after: np.ndarray
    """(n, sources)."""
    steps: np.ndarray
    """(n, sources): steps taken; the mean over draws, rounded, where there are several."""
    status: np.ndarray
    """(n,) of the names in `STATUS_TEXT`."""
    trajectory: np.ndarray | None = None
    """(n, num_steps + 1, sources, dim) when asked for."""

    def __len__(self) -> int:
        return len(self.probabilities)


class Adapter(Protocol):
    """Callable on rescaled features; the three flags say what it costs a deployment."""

    changes_weights: ClassVar[bool]
    keeps_state: ClassVar[bool]
    needs_batch: ClassVar[bool]

    def __call__(self, network: Network, feature: Tensor) -> Adapted: ...


ADAPTERS: Registry[type] = Registry("adapter")


def create_adapter(name: str, **settings: object) -> Adapter:
    """Build an adapter by name.

    >>> create_adapter("none").keeps_state
    False
    """
    return ADAPTERS[name](**settings)


def list_adapters() -> list[str]:
    """Names that `create_adapter` knows."""
    return list(ADAPTERS)
