"""The paper's adapter: every sample walks toward every source, and the sources vote."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sourceward.adapters.base import (
    ADAPTERS,
    KEPT_ENERGY_NOT_LOWER,
    KEPT_GATE,
    MOVED,
    NONFINITE,
    Adapted,
)
from sourceward.algorithm import Answer, adapt
from sourceward.functional import row_keys
from sourceward.nn import Network
from sourceward.settings import AdaptSettings

BLOCK = 512
"""Rows computed together: bounds memory, whatever the number of rows."""

SMALLEST = 16
"""Fewer rows are padded to this many: below it BLAS switches kernels, and a row's last bits would depend on
how many neighbours it has."""


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

    settings: AdaptSettings = field(default_factory=AdaptSettings)
    sources: tuple[int, ...] | None = None
    record: bool = False

    def __call__(self, network: Network, feature: Tensor) -> Adapted:
        network.eval()
        keys = row_keys(feature.detach().cpu().numpy(), self.settings.seed).to(feature.device)
        blocks = [
            self._block(network, feature[i : i + BLOCK], keys[i : i + BLOCK])
            for i in range(0, len(feature), BLOCK)
        ]
        parts = {name: [getattr(block, name) for block in blocks] for name in Adapted.__dataclass_fields__}
        return Adapted(**{k: None if v[0] is None else np.concatenate(v) for k, v in parts.items()})

    def _block(self, network: Network, feature: Tensor, keys: Tensor) -> Adapted:
        rows = len(feature)
        pad = max(SMALLEST - rows, 0)
        feature = torch.cat([feature, feature[-1:].expand(pad, -1)])
        keys = torch.cat([keys, keys[-1:].expand(pad)])
        answer = adapt(network, feature, keys, self.settings, sources=self.sources, record=self.record)
        finite = torch.isfinite(answer.probability).all(-1)
        if not bool(finite.all()):
            still = AdaptSettings(num_steps=0, aggregation=self.settings.aggregation)
            answer = _fall_back(answer, adapt(network, feature, keys, still, sources=self.sources), finite)
        return self._to_numpy(answer, finite, network, rows)

    def _to_numpy(self, answer: Answer, finite: Tensor, network: Network, rows: int) -> Adapted:
        draws = max(self.settings.num_draws, 1)
        chain = answer.chain

        def mean(values: Tensor) -> Tensor:
            """Average over draws: (sources, draws x batch, ...) -> (batch, sources, ...)."""
            return values.unflatten(1, (draws, -1)).float().mean(1).transpose(0, 1)

        before, after = mean(chain.energy_before), mean(chain.energy_after)
        status = np.where((after < before).any(-1).cpu().numpy(), MOVED, KEPT_ENERGY_NOT_LOWER)
        if self.settings.num_steps == 0:
            status[:] = KEPT_GATE
        status[~finite.cpu().numpy()] = NONFINITE
        trajectory = None
        if chain.trajectory is not None:
            points = network.raw(chain.trajectory.unflatten(2, (draws, -1)).mean(2))
            trajectory = points.permute(2, 0, 1, 3)[:rows].cpu().numpy()
        return Adapted(
            network.raw(mean(chain.feature))[:rows].cpu().numpy(),
            answer.probability[:rows].cpu().numpy(),
            answer.per_source.transpose(0, 1)[:rows].cpu().numpy(),
            before[:rows].cpu().numpy(),
            after[:rows].cpu().numpy(),
            mean(chain.steps)[:rows].round().long().cpu().numpy(),
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

    def __call__(self, network: Network, feature: Tensor) -> Adapted:
        return EnergyAdaptation(AdaptSettings(num_steps=0))(network, feature)


def _fall_back(answer: Answer, still: Answer, finite: Tensor) -> Answer:
    row = finite.unsqueeze(-1)
    return answer._replace(
        probability=torch.where(row, answer.probability, still.probability),
        per_source=torch.where(row, answer.per_source, still.per_source),
    )
