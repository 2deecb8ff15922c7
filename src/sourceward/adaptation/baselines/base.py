"""The contract of a baseline: it maps batches, in order, to predictions; this class does the rest."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import tee
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.adaptation.base import (
    ADAPTED,
    ADAPTERS,
    NONFINITE,
    NOT_ADAPTED,
    AdaptationResult,
    Stream,
    Unsuitable,
    join,
)
from sourceward.adaptation.baselines.batches import concatenate_inputs, rebatch
from sourceward.adaptation.baselines.classifier import encoder, ensemble_logits
from sourceward.functional.aggregation import log_mixture
from sourceward.nn import Network
from sourceward.samplers import energy_target

ROWS_PER_TRANSFER = 256
"""Rows copied from the device together: a copy for every batch would make the device wait each time."""

AT_LEAST_ONE = ("batch_size", "num_copies", "buffer_size")
"""Options that must be 1 or more; every other number must be 0 or more."""


class BatchPrediction(NamedTuple):
    """A baseline's prediction for one batch."""

    feature: Tensor
    """(batch, dim): the features that were classified."""
    probability: Tensor
    """(batch, classes)."""
    per_source: Tensor | None = None
    """(sources, batch, classes); None where a method has one classifier for all sources."""

    @classmethod
    def from_logits(cls, feature: Tensor, logits: Tensor) -> "BatchPrediction":
        """Average the classifiers' probabilities, as without adaptation."""
        feature, logits = feature.detach(), logits.detach()
        return cls(feature, log_mixture(logits).exp(), logits.softmax(-1).mean(0))

    @classmethod
    def concatenate(cls, parts: list["BatchPrediction"]) -> "BatchPrediction":
        """Join predictions by rows."""
        feature, probability, per_source = zip(*parts)
        sources = None if per_source[0] is None else torch.cat(per_source, dim=1)
        return cls(torch.cat(feature), torch.cat(probability), sources)


@torch.no_grad()
def unadapted(network: Network, feature: Tensor) -> BatchPrediction:
    """Return the prediction without adaptation."""
    return BatchPrediction.from_logits(feature, ensemble_logits(network, feature))


@dataclass(frozen=True)
class Baseline:
    """A published test-time method as an adapter.

    A subclass implements `predict_batches`. The energies in the result are the network's own at the features
    that were classified; no baseline uses them.

    Learning rates, and M of T3A, without another source in the docstring were chosen by leave-one-domain-out
    validation on two datasets of frozen features.

    Args:
        batch_size: samples that are adapted to together.
    """

    changes_weights: ClassVar[bool] = True
    keeps_state: ClassVar[bool] = True
    needs_batch: ClassVar[bool] = True
    reads: ClassVar[str] = "features"
    use_on_features: ClassVar[str] = ""
    """Adapters to name to a user whose model has no backbone."""

    batch_size: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), int(field.name in AT_LEAST_ONE)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if field.type in (int, float) and not (number and value >= least):
                raise InputError(f"Expected `{field.name}` to be {least} or more, but got {value!r}.")

    def __call__(self, network: Network, inputs: Stream) -> AdaptationResult:
        network.eval()
        self.check(network)
        given, read = tee(rebatch(inputs, self.batch_size))
        with torch.enable_grad():
            predicted = _grouped(zip(given, self.predict_batches(network, read)))
            results = [self._result(network, batch, prediction) for batch, prediction in predicted]
        if not results:
            nothing = unadapted(network, network.scale.new_zeros(0, network.dim))
            results = [_to_numpy(network, nothing, nothing.probability.isfinite().all(-1), 0)]
        return join(results)

    def check(self, network: Network) -> None:
        """Raise `Unsuitable` for a network that the method cannot be applied to."""
        if self.reads == "inputs" and network.backbone is None:
            name = next((name for name in ADAPTERS if ADAPTERS[name] is type(self)), type(self).__name__)
            hint = f" Use {self.use_on_features}." if self.use_on_features else ""
            raise Unsuitable(f"{name} adapts a backbone, but this model reads features.{hint}")

    def predict_batches(self, network: Network, batches: Iterator[Any]) -> Iterator[BatchPrediction]:
        """Yield the prediction of each batch, in order. State lasts for one call of this function."""
        raise NotImplementedError

    def _result(self, network: Network, batch: Any, prediction: BatchPrediction) -> AdaptationResult:
        """Convert a prediction; rows that are not finite get the prediction without adaptation."""
        finite = prediction.probability.isfinite().all(-1)
        if not bool(finite.all()):
            with torch.no_grad():
                feature = batch if self.reads == "features" else encoder(network)(batch)
            plain = unadapted(network, feature)
            adapted = prediction._replace(per_source=_per_source(prediction, network.sources))
            prediction = BatchPrediction(
                *(torch.where(finite[:, None], new, old) for new, old in zip(adapted, plain))  # type: ignore[arg-type]
            )
        return _to_numpy(network, prediction, finite, getattr(self, "num_updates", 1))


def _per_source(prediction: BatchPrediction, sources: int) -> Tensor:
    if prediction.per_source is not None:
        return prediction.per_source
    return prediction.probability.expand(sources, *prediction.probability.shape)


def _grouped(pairs: Iterator[tuple[Any, BatchPrediction]]) -> Iterator[tuple[Any, BatchPrediction]]:
    """Join consecutive batches until they have `ROWS_PER_TRANSFER` rows."""
    held: list[tuple[Any, BatchPrediction]] = []
    for pair in pairs:
        held.append(pair)
        if sum(len(prediction.probability) for _, prediction in held) >= ROWS_PER_TRANSFER:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(held: list[tuple[Any, BatchPrediction]]) -> tuple[Any, BatchPrediction]:
    batches, predictions = zip(*held)
    return concatenate_inputs(list(batches)), BatchPrediction.concatenate(list(predictions))


@torch.no_grad()
def _to_numpy(
    network: Network, prediction: BatchPrediction, finite: Tensor, num_updates: int
) -> AdaptationResult:
    feature = prediction.feature.expand(network.sources, *prediction.feature.shape)
    prior = network.prior(feature)
    target = energy_target(network.energy.weights(), None if prior is None else prior.mean)
    energy = target.energy(feature).T.cpu().numpy()
    return AdaptationResult(
        features=network.raw(feature).transpose(0, 1).cpu().numpy(),
        probabilities=prediction.probability.cpu().numpy(),
        per_source=_per_source(prediction, network.sources).transpose(0, 1).cpu().numpy(),
        energy_before=energy,
        energy_after=energy,
        steps=np.full((len(energy), network.sources), num_updates),
        status=np.where(finite.cpu().numpy(), ADAPTED if num_updates else NOT_ADAPTED, NONFINITE),
    )
