"""The paper's adapter: every sample walks toward every source, and the sources vote."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from sourceward._util.graphs import Graph, replay
from sourceward.adaptation.base import (
    ADAPTED,
    ADAPTERS,
    ENERGY_NOT_LOWER,
    NONFINITE,
    NOT_ADAPTED,
    AdaptationResult,
    join,
)
from sourceward.algorithm import Answer, adapt
from sourceward.functional import row_multiple
from sourceward.nn import Network, folded
from sourceward.nn.encoder import ImageEncoder, StaleEncoder
from sourceward.nn.folded import folded_before
from sourceward.samplers.chain import keys_of
from sourceward.settings import AdaptSettings

BLOCK = 512
"""Rows computed together: bounds memory, whatever the number of rows."""

INPUTS = 128
"""Inputs that an encoder takes together: more are no faster, and every graph holds memory."""

Encoder = Callable[[Tensor], Tensor]
"""From inputs to rescaled features. The same object must mean the same function of the same weights."""


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

    def __call__(self, network: Network, feature: Tensor) -> AdaptationResult:
        return self.answer(network, feature)

    def answer(self, network: Network, inputs: Tensor, encoder: Encoder | None = None) -> AdaptationResult:
        """The answer for features, or for inputs of an encoder, which is then part of the same captured call.

        Args:
            network: trained.
            inputs: (n, dim) rescaled features, or what the encoder takes, from any device.
            encoder: on the network's CUDA device. An `ImageEncoder` that is not valid raises `StaleEncoder`.
        """
        size = BLOCK if encoder is None else INPUTS
        starts = range(0, max(len(inputs), 1), size)
        return join([self._block(network, inputs[i : i + size], encoder) for i in starts])

    def _block(self, network: Network, inputs: Tensor, encoder: Encoder | None) -> AdaptationResult:
        padded = _more_rows(inputs, _rows(len(inputs), network, encoder is not None))
        table, trajectory = self._table(network, padded, encoder)
        adapted = self._unpacked(table[: len(inputs)].cpu().numpy(), network)
        if trajectory is not None:
            adapted = replace(adapted, trajectory=trajectory[: len(inputs)].cpu().numpy())
        finite = np.isfinite(adapted.probabilities).all(1)
        if finite.all() or not self.settings.num_steps:
            return adapted
        still = replace(self, settings=self.settings.off())
        return _fall_back(adapted, still._block(network, inputs, encoder), finite)

    def _table(
        self, network: Network, inputs: Tensor, encoder: Encoder | None
    ) -> tuple[Tensor, Tensor | None]:
        """On CUDA a graph of earlier on is launched at once; whether anything that it was recorded of has
        changed is found out while it runs."""

        def table(inputs: Tensor) -> tuple[Tensor, Tensor | None]:
            feature = inputs
            if encoder is not None:
                feature = encoder(inputs)
                feature = _more_rows(feature, _rows(len(feature), network))
            keys = keys_of(feature, self.settings.seed)
            answer = adapt(network, feature, keys, self.settings, sources=self.sources, record=self.record)
            return self._packed(answer, network)

        if not network.scale.is_cuda:
            _rest(network, encoder)
            return table(inputs)
        key = (*inputs.shape, inputs.dtype, encoder, self.settings, self.sources, self.record)
        before = folded_before(network)
        graph = None if before is None else before.graphs.get(key)
        with torch.no_grad():
            launched = graph(inputs) if isinstance(graph, Graph) else None
            rested, now = _rest(network, encoder), folded(network)
            if isinstance(encoder, ImageEncoder) and not encoder.valid():
                raise StaleEncoder
            if launched is not None and rested and now is before:
                return launched
            return replay(now.graphs, key, table, inputs, device=network.scale.device)

    def _packed(self, answer: Answer, network: Network) -> tuple[Tensor, Tensor | None]:
        """Everything of a sample in one row, so that it leaves the device in one copy; and trajectories."""
        draws, chain = max(self.settings.num_draws, 1), answer.chain

        def mean(values: Tensor) -> Tensor:
            """Average over draws: (sources, draws x batch, ...) -> (sources, batch, ...)."""
            values = values.to(answer.probability.dtype)
            return values.unflatten(1, (draws, -1)).mean(1) if draws > 1 else values

        trajectory = None
        if chain.trajectory is not None:
            points = network.raw(chain.trajectory.unflatten(2, (draws, -1)).mean(2))
            trajectory = points.permute(2, 0, 1, 3)
        parts = (
            *network.raw(mean(chain.feature)),
            answer.probability,
            *answer.per_source,
            *(mean(values).T for values in (chain.energy_before, chain.energy_after, chain.steps)),
        )
        return torch.cat(parts, 1), trajectory

    def _unpacked(self, table: np.ndarray, network: Network) -> AdaptationResult:
        sources, classes = network.sources, network.classes
        widths = (sources * network.dim, classes, sources * classes, sources, sources, sources)
        ends = accumulate(widths, initial=0)  # faster than `np.split`, and one sample counts
        parts = (np.ascontiguousarray(table[:, a:b]) for a, b in pairwise(ends))
        feature, probability, per_source, before, after, steps = parts
        voters = steps if self.sources is None else steps[:, list(self.sources)]
        status = np.where((voters > 0).any(1), ADAPTED, ENERGY_NOT_LOWER)
        if self.settings.num_steps == 0:
            status[:] = NOT_ADAPTED
        return AdaptationResult(
            feature.reshape(-1, sources, network.dim),
            probability,
            per_source.reshape(-1, sources, classes),
            before,
            after,
            steps.round().astype(np.int64),
            status,
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

    def __call__(self, network: Network, feature: Tensor) -> AdaptationResult:
        return EnergyAdaptation(self.settings.off())(network, feature)


def _rest(network: Network, encoder: Encoder | None) -> bool:
    """Out of training mode; whether everything was already. To say so again takes longer than an answer."""
    rested = not any(part.training for part in _parts(network, encoder))
    if not rested:
        network.eval()
    return rested


def _parts(network: Network, encoder: Encoder | None) -> Iterator[nn.Module]:
    """The modules that an answer is made with. A backbone has hundreds: an `ImageEncoder` found them once."""
    yield network
    for child in network.children():
        yield from [child] if child is network.backbone else child.modules()
    if isinstance(encoder, ImageEncoder):
        yield from encoder.modules
    elif encoder is not None and network.backbone is not None:
        yield from network.backbone.modules()


def _rows(rows: int, network: Network, encoded: bool = False) -> int:
    """Rows to compute for so many: on CUDA one of a few numbers, each of which has a graph."""
    if network.scale.is_cuda:
        sizes = (1, 2, 4, 8, 16, 32, 64, INPUTS) if encoded else (16, 32, 64, 128, 256, BLOCK)
        return next(size for size in sizes if size >= rows)
    multiple = 1 if encoded else row_multiple(network.dim, network.energy.hidden)
    return max(rows + -rows % multiple, multiple)


def _more_rows(inputs: Tensor, rows: int) -> Tensor:
    """With rows of zeros after the last, until there are `rows`."""
    missing = rows - len(inputs)
    return pad(inputs, [0] * (2 * inputs.dim() - 1) + [missing]) if missing else inputs


def _fall_back(adapted: AdaptationResult, still: AdaptationResult, finite: np.ndarray) -> AdaptationResult:
    """The unadapted answer, in every respect, where the adapted one is not finite."""

    def rows(name: str) -> Any:
        value = getattr(adapted, name)
        if value is None:
            return None
        keep = finite.reshape(-1, *[1] * (value.ndim - 1))
        return np.where(keep, value, NONFINITE if name == "status" else getattr(still, name))

    return AdaptationResult(**{name: rows(name) for name in AdaptationResult.__dataclass_fields__})
