"""The paper's adapter: every sample walks toward every source, and the sources vote."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch.nn.functional import pad

from sourceward.adapters.base import (
    ADAPTERS,
    KEPT_ENERGY_NOT_LOWER,
    KEPT_GATE,
    MOVED,
    NONFINITE,
    Adapted,
)
from sourceward.algorithm import Answer, adapt
from sourceward.functional import row_keys, row_multiple
from sourceward.graphs import replay
from sourceward.nn import Network, folded
from sourceward.settings import AdaptSettings

BLOCK = 512
"""Rows computed together: bounds memory, whatever the number of rows."""


@ADAPTERS.register("ebtsa")
@dataclass(frozen=True)
class EnergyAdaptation:
    """Energy-based test sample adaptation.

    Args:
        settings: test-time settings.
        sources: numbers of the sources that take part; all when None.
        record: keep trajectories.
    """

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "features"

    settings: AdaptSettings = field(default_factory=AdaptSettings)
    sources: tuple[int, ...] | None = None
    record: bool = False

    def __call__(self, network: Network, feature: Tensor) -> Adapted:
        network.eval()
        keys = row_keys(feature, self.settings.seed)
        starts = range(0, max(len(feature), 1), BLOCK)
        blocks = [self._block(network, feature[i : i + BLOCK], keys[i : i + BLOCK]) for i in starts]

        def joined(name: str) -> Any:
            parts = [getattr(block, name) for block in blocks]
            return None if parts[0] is None else np.concatenate(parts)

        return Adapted(**{name: joined(name) for name in Adapted.__dataclass_fields__})

    def _block(self, network: Network, feature: Tensor, keys: Tensor) -> Adapted:
        rows = len(feature)
        missing = _padded(rows, feature) - rows
        padded, padded_keys = pad(feature, (0, 0, 0, missing)), pad(keys, (0, missing))
        answer = self._answer(network, padded, padded_keys)
        adapted = self._to_numpy(answer, network, rows)
        finite = np.isfinite(adapted.probabilities).all(1)
        if finite.all() or not self.settings.num_steps:
            return adapted
        still = replace(self, settings=self.settings.off())
        return _fall_back(adapted, still._block(network, feature, keys), finite)

    def _answer(self, network: Network, feature: Tensor, keys: Tensor) -> Answer:
        def answer(feature: Tensor, keys: Tensor) -> Answer:
            return adapt(network, feature, keys, self.settings, sources=self.sources, record=self.record)

        if not feature.is_cuda:
            return answer(feature, keys)
        key = (*feature.shape, self.settings, self.sources, self.record)
        return replay(folded(network).graphs, key, answer, feature, keys)

    def _to_numpy(self, answer: Answer, network: Network, rows: int) -> Adapted:
        draws = max(self.settings.num_draws, 1)
        chain = answer.chain

        def mean(values: Tensor) -> Tensor:
            """Average over draws: (sources, draws x batch, ...) -> (batch, sources, ...)."""
            return values.unflatten(1, (draws, -1)).float().mean(1).transpose(0, 1)

        steps = mean(chain.steps)
        voters = steps if self.sources is None else steps[:, list(self.sources)]
        status = np.where((voters > 0).any(-1).cpu().numpy(), MOVED, KEPT_ENERGY_NOT_LOWER)
        if self.settings.num_steps == 0:
            status[:] = KEPT_GATE
        trajectory = None
        if chain.trajectory is not None:
            points = network.raw(chain.trajectory.unflatten(2, (draws, -1)).mean(2))
            trajectory = points.permute(2, 0, 1, 3)[:rows].cpu().numpy()
        return Adapted(
            network.raw(mean(chain.feature))[:rows].cpu().numpy(),
            answer.probability[:rows].cpu().numpy(),
            answer.per_source.transpose(0, 1)[:rows].cpu().numpy(),
            mean(chain.energy_before)[:rows].cpu().numpy(),
            mean(chain.energy_after)[:rows].cpu().numpy(),
            steps[:rows].round().long().cpu().numpy(),
            status[:rows],
            trajectory,
        )


@ADAPTERS.register("none")
@dataclass(frozen=True)
class NoAdaptation:
    """The same classifiers on the sample as it came: the control of every comparison."""

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "features"

    settings: AdaptSettings = field(default_factory=AdaptSettings)

    def __call__(self, network: Network, feature: Tensor) -> Adapted:
        return EnergyAdaptation(self.settings.off())(network, feature)


def _padded(rows: int, feature: Tensor) -> int:
    """Rows to compute for `rows` samples: on CUDA one of a few numbers, each of which has a graph."""
    if feature.is_cuda:
        return next(size for size in (16, 32, 64, 128, 256, BLOCK) if size >= rows)
    multiple = row_multiple(feature.shape[1])
    return max(rows + -rows % multiple, multiple)


def _fall_back(adapted: Adapted, still: Adapted, finite: np.ndarray) -> Adapted:
    """The unadapted answer, in every respect, where the adapted one is not finite."""

    def rows(name: str) -> Any:
        value = getattr(adapted, name)
        if value is None:
            return None
        keep = finite.reshape(-1, *[1] * (value.ndim - 1))
        return np.where(keep, value, NONFINITE if name == "status" else getattr(still, name))

    return Adapted(**{name: rows(name) for name in Adapted.__dataclass_fields__})
