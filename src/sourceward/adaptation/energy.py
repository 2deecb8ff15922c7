"""The paper's adapter: Langevin steps toward every source, then aggregation over the sources."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from sourceward._util.devices import without_autocast
from sourceward._util.graphs import Graph, HostCopy, replay
from sourceward._util.threads import threads_for
from sourceward.adaptation.base import (
    ADAPTED,
    ADAPTERS,
    ENERGY_NOT_LOWER,
    NONFINITE,
    NOT_ADAPTED,
    AdaptationResult,
    join,
    replace_rows,
    select_rows,
)
from sourceward.algorithm import Inference, adapt
from sourceward.functional import row_multiple
from sourceward.nn import Network, folded
from sourceward.nn.encoder import ImageEncoder, StaleEncoder
from sourceward.nn.folded import last_folded
from sourceward.samplers.chain import keys_of
from sourceward.settings import AdaptSettings

BLOCK = 512
"""Rows computed together: bounds memory, whatever the number of rows."""

INPUTS = 128
"""Inputs encoded together: more are no faster, and every graph holds memory."""

IMAGE_SIZES = (*range(1, 9), 10, 12, 14, *range(16, 33, 4), 40, 48, 56, 64, 80, 96, 112, INPUTS)
"""Numbers of images that have a graph on CUDA; rows of zeros, which take as long as images, fill it up."""

Block = tuple[Tensor, HostCopy, HostCopy | None]
"""Inputs that are computed together, all results in one table, and trajectories."""

Encoder = Callable[[Tensor], Tensor]
"""From inputs to rescaled features. The same object must mean the same function of the same weights."""


@ADAPTERS.register("ebtsa")
@dataclass(frozen=True)
class EnergyAdaptation:
    """Energy-based test sample adaptation (Xiao et al., ICLR 2023).

    Args:
        settings: of test time; those that the network was fitted with when None, see `settings_of`.
        sources: numbers of the sources to aggregate over; all when None.
        record: keep trajectories.
    """

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "features"

    settings: AdaptSettings | None = None
    sources: tuple[int, ...] | None = None
    record: bool = False

    def __call__(self, network: Network, feature: Tensor) -> AdaptationResult:
        return self.predict(network, feature)

    def predict(self, network: Network, inputs: Tensor, encoder: Encoder | None = None) -> AdaptationResult:
        """Adapt features, or inputs of an encoder, which is then part of the same captured CUDA graph.

        Args:
            network: trained.
            inputs: (n, dim) rescaled features, or what the encoder takes, from any device.
            encoder: on the network's CUDA device. An `ImageEncoder` that is not valid raises `StaleEncoder`.
        """
        return self.predict_copies(network, inputs, encoder)[0]

    def predict_copies(
        self, network: Network, inputs: Tensor, encoder: Encoder | None
    ) -> list[AdaptationResult]:
        """`predict` for an encoder of several copies: a result for each, in its order.

        Features, energies and steps are those of the first copy in every result.
        """
        parts = [self.launch(network, some, encoder).results() for some in inputs.split(BLOCK)]
        return [join(copy) for copy in zip(*parts)]

    def launch(self, network: Network, inputs: Tensor, encoder: Encoder | None) -> "Launched":
        """`predict_copies` that does not wait for a CUDA device, which holds all results in pinned memory."""
        if self.settings is None:
            return replace(self, settings=settings_of(network)).launch(network, inputs, encoder)
        size = BLOCK if encoder is None else INPUTS if _copies(encoder) == 1 else INPUTS // 2
        blocks = [self._begin(network, some, encoder) for some in inputs.split(size)]
        return Launched(self, network, encoder, blocks)

    @property
    def _settings(self) -> AdaptSettings:
        assert self.settings is not None
        return self.settings

    def _begin(self, network: Network, inputs: Tensor, encoder: Encoder | None) -> Block:
        padded = _more_rows(inputs, _rows(len(inputs), network, encoder is not None))
        table, trajectory = self._table(network, padded, encoder, len(inputs))
        points = None if trajectory is None else HostCopy(trajectory[: len(inputs)])
        return inputs, HostCopy(table[: len(inputs)]), points

    def _end(self, network: Network, block: Block, encoder: Encoder | None) -> list[AdaptationResult]:
        inputs, table, trajectory = block
        copies = self._unpacked(table.numpy(), network, _copies(encoder))
        if trajectory is not None:
            copies[0] = replace(copies[0], trajectory=trajectory.numpy().copy())
        finite = [np.isfinite(copy.probabilities).all(1) for copy in copies]
        if np.all(finite) or not self._settings.num_steps:
            return copies
        off = replace(self, settings=self._settings.off())
        plain = off._end(network, off._begin(network, inputs, encoder), encoder)
        return [_fall_back(*copy) for copy in zip(copies, plain, finite)]

    @without_autocast()
    def _table(
        self, network: Network, inputs: Tensor, encoder: Encoder | None, rows: int
    ) -> tuple[Tensor, Tensor | None]:
        """On CUDA a known graph is launched at once; whether it is still valid is checked while it runs."""

        def table(inputs: Tensor) -> tuple[Tensor, Tensor | None]:
            feature = inputs if encoder is None else encoder(inputs)
            feature = _more_rows(feature, _rows(len(feature), network))  # features have been padded
            all_rows = feature.is_cuda or self._settings.num_draws
            own = feature if all_rows else feature[: rows * _copies(encoder)]  # without padding
            keys = keys_of(own, self._settings.seed)
            answer = adapt(network, feature, keys, self._settings, sources=self.sources, record=self.record)
            packed, points = self._packed(answer, network)
            return _beside(packed, len(inputs), _copies(encoder), network), points

        if not network.scale.is_cuda:
            _eval_mode(network, encoder)
            with threads_for(network.dim):
                return table(inputs)
        key = (*inputs.shape, inputs.dtype, encoder, self.settings, self.sources, self.record)
        before = last_folded(network)
        graph = None if before is None else before.graphs.get(key)
        with torch.no_grad():
            launched = graph(inputs) if isinstance(graph, Graph) else None
            in_eval, now = _eval_mode(network, encoder), folded(network)
            if isinstance(encoder, ImageEncoder) and not encoder.valid():
                raise StaleEncoder
            if launched is not None and in_eval and now is before:
                return launched
            return replay(now.graphs, key, table, inputs, device=network.scale.device)

    def _packed(self, answer: Inference, network: Network) -> tuple[Tensor, Tensor | None]:
        """All results of a sample in one row, so that they leave the device in one copy; and trajectories."""
        draws, chain = max(self._settings.num_draws, 1), answer.chain

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

    def _unpacked(self, table: np.ndarray, network: Network, copies: int) -> list[AdaptationResult]:
        sources, classes = network.sources, network.classes
        widths = (sources * network.dim, classes, sources * classes, sources, sources, sources)
        ends = accumulate(widths, initial=0)  # faster than `np.split`, and one sample counts
        parts = (table[:, a:b].copy() for a, b in pairwise(ends))  # so that none keeps the pinned table
        feature, probability, per_source, before, after, steps = parts
        used = steps if self.sources is None else steps[:, list(self.sources)]
        status = np.where((used > 0).any(1), ADAPTED, ENERGY_NOT_LOWER)
        if self._settings.num_steps == 0:  # energies may still weight the sources
            status[:] = NOT_ADAPTED if self._settings.is_off else ADAPTED
        first = AdaptationResult(
            feature.reshape(-1, sources, network.dim),
            probability,
            per_source.reshape(-1, sources, classes),
            before,
            after,
            steps.round().astype(np.int64),
            status,
        )
        if copies == 1:
            return [first]
        votes = table[:, sum(widths) :].reshape(len(table), copies - 1, 1 + sources, classes)
        others = (votes[:, copy].copy() for copy in range(copies - 1))
        return [first, *(replace(first, probabilities=v[:, 0], per_source=v[:, 1:]) for v in others)]


class Launched(NamedTuple):
    """Predictions that a device may still be computing; both methods wait for it."""

    adapter: EnergyAdaptation
    network: Network
    encoder: Encoder | None
    blocks: list[Block]

    def results(self) -> list[AdaptationResult]:
        """A result for each copy."""
        found = [self.adapter._end(self.network, block, self.encoder) for block in self.blocks]
        return [join(parts).with_trust(self.adapter._settings.temperature) for parts in zip(*found)]

    def probabilities(self) -> np.ndarray:
        """Those of the first copy, (n, classes), which take less time than its whole result."""
        start, classes = self.network.sources * self.network.dim, self.network.classes
        found = np.concatenate([table.numpy()[:, start : start + classes] for _, table, _ in self.blocks])
        return found if np.isfinite(found).all() else self.results()[0].probabilities


@ADAPTERS.register("none")
@dataclass(frozen=True)
class NoAdaptation:
    """The same classifiers on the unadapted sample: the control of every comparison."""

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "features"

    settings: AdaptSettings | None = None

    def __call__(self, network: Network, feature: Tensor) -> AdaptationResult:
        return EnergyAdaptation((self.settings or settings_of(network)).off())(network, feature)


def settings_of(network: Network) -> AdaptSettings:
    """The test-time settings that a network was fitted with, or the defaults."""
    return network.__dict__.get("_settings") or AdaptSettings()


def keep_settings(network: Network, settings: AdaptSettings) -> None:
    """Remember the test-time settings that a network was fitted with."""
    network.__dict__["_settings"] = settings


def _eval_mode(network: Network, encoder: Encoder | None) -> bool:
    """Put everything in eval mode; return whether it was already, since calling `eval` again is slow."""
    in_eval = not any(part.training for part in _parts(network, encoder))
    if not in_eval:
        network.eval()
    return in_eval


def _parts(network: Network, encoder: Encoder | None) -> Iterator[nn.Module]:
    """The modules behind a prediction. A backbone has hundreds: an `ImageEncoder` lists them once."""
    yield network
    for child in network.children():
        yield from [child] if child is network.backbone else child.modules()
    if isinstance(encoder, ImageEncoder):
        yield from encoder.modules
    elif encoder is not None and network.backbone is not None:
        yield from network.backbone.modules()


def _copies(encoder: Encoder | None) -> int:
    return encoder.copies if isinstance(encoder, ImageEncoder) else 1


def _beside(table: Tensor, rows: int, copies: int, network: Network) -> Tensor:
    """A table of rows copy by copy as one row per sample, with the predictions on its other copies."""
    if copies == 1:
        return table
    start, votes = network.sources * network.dim, (1 + network.sources) * network.classes
    first, *others = table[: copies * rows].split(rows)
    return torch.cat([first, *(other[:, start : start + votes] for other in others)], 1)


def _rows(rows: int, network: Network, encoded: bool = False) -> int:
    """Rows to pad to: on CUDA one of a few sizes, each of which has a graph."""
    if network.scale.is_cuda:
        sizes = IMAGE_SIZES if encoded else (16, 32, 64, 128, 256, BLOCK)
        return next((size for size in sizes if size >= rows), rows + -rows % BLOCK)
    multiple = 1 if encoded else row_multiple(network.dim, network.energy.hidden)
    return max(rows + -rows % multiple, multiple)


def _more_rows(inputs: Tensor, rows: int) -> Tensor:
    """Pad with rows of zeros to `rows`."""
    missing = rows - len(inputs)
    return pad(inputs, [0] * (2 * inputs.dim() - 1) + [missing]) if missing else inputs


def _fall_back(adapted: AdaptationResult, plain: AdaptationResult, finite: np.ndarray) -> AdaptationResult:
    """Take the unadapted result where the adapted one is not finite."""
    own = replace(select_rows(plain, ~finite), status=np.full((~finite).sum(), NONFINITE))
    return replace_rows(adapted, ~finite, own)
