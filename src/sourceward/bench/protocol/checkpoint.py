"""One trained model, and every method evaluated on it: the same weights and features for all."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation import ADAPTERS, AdaptationResult, create_adapter
from sourceward.adaptation.base import adapter_traits, select_rows
from sourceward.adaptation.stream import run_stream
from sourceward.adaptation.tta import CopyFeatures, predict_copies
from sourceward.bench.protocol.controls import Classifier, fit_control
from sourceward.bench.protocol.methods import AUTO, EBTSA, NONE, STREAM, Method
from sourceward.bench.speed.throughput import measure_encoding
from sourceward.data import DomainDataset
from sourceward.data.loading import prepare_samples
from sourceward.model import Model
from sourceward.model.evaluation import dataset_copies, dataset_features
from sourceward.model.examples import class_positions
from sourceward.nn import Network
from sourceward.settings import AdaptSettings


@dataclass(frozen=True)
class Part:
    """Samples of one domain with their features (n, dim), rescaled."""

    dataset: DomainDataset
    feature: Tensor

    @property
    def label(self) -> np.ndarray:
        return self.dataset.labels

    def select(self, rows: np.ndarray) -> "Part":
        """Return some of the samples."""
        return Part(self.dataset.select(rows), self.feature[torch.from_numpy(rows).to(self.feature.device)])


@dataclass
class Checkpoint:
    """A trained model with the data that it is evaluated on.

    Args:
        model: trained on the other domains.
        data: the whole dataset.
        left_out: domains that were not trained on.
        info: seconds and memory of the training, expected gain, seed.
        folder: the model's.
    """

    model: Model
    data: DomainDataset
    left_out: tuple[str, ...]
    info: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    _controls: dict[str, tuple[Classifier, np.ndarray, float]] = field(default_factory=dict)
    _parts: dict[str, Part] = field(default_factory=dict)
    _prepared: list[tuple[Part, Any]] = field(default_factory=list)
    _copies: tuple[Part, list[CopyFeatures]] | None = None

    @property
    def network(self) -> Network:
        return self.model.network

    @property
    def sources(self) -> tuple[str, ...]:
        return self.model.sources

    @cached_property
    def codes(self) -> np.ndarray:
        """Code of each of the model's classes in the dataset's numbering."""
        return np.array([self.data.classes.index(name) for name in self.model.classes])

    def part(self, domain: str) -> Part:
        """Return all samples of one domain; encoded once."""
        if domain not in self._parts:
            self._parts[domain] = self._encoded(self.data.of_domains([domain]))
        return self._parts[domain]

    def _encoded(self, dataset: DomainDataset) -> Part:
        return Part(dataset, dataset_features(self.model, dataset, False))

    @cached_property
    def source_part(self) -> Part:
        """All samples of the sources together."""
        return self._encoded(self.data.without(self.left_out))

    @cached_property
    def validation(self) -> list[Part]:
        """Rows of each source that were not trained on."""
        sources = self.data.without(self.left_out)
        rows = sources.train_val_indices(self.info["validation_fraction"])[1]
        parts = [rows[sources.domains[rows] == code] for code in range(len(sources.domain_names))]
        if self.info["frozen"]:  # features are cached by domain: those of a part would be computed again
            return [self.source_part.select(part) for part in parts if len(part)]
        return [self._encoded(sources.select(part)) for part in parts if len(part)]

    def control(self, name: str) -> tuple[Classifier, np.ndarray, float]:
        """Return a control trained on the rows of heads and energies, its class codes, and its seconds."""
        if name not in self._controls:
            sources = self.source_part
            rows = sources.dataset.train_val_indices(self.info["validation_fraction"])[0]
            label, domain = sources.label[rows], sources.dataset.domains[rows]
            start = time.perf_counter()
            fitted = fit_control(name, self.raw(sources)[rows], label, domain, self.info["seed"])
            self._controls[name] = *fitted, time.perf_counter() - start
        return self._controls[name]

    def raw(self, part: Part) -> np.ndarray:
        """Return features in the units in which heads and energies first see them."""
        if part.dataset.kind == "features":
            return np.asarray(part.dataset.items, dtype=np.float32)
        return self.network.raw(part.feature).cpu().numpy()

    @cached_property
    def encode_ms(self) -> float:
        """Milliseconds of the backbone for each sample, without decoding; 0 without a backbone."""
        return 0.0 if self.model.backbone is None else measure_encoding(self.model, self.data)

    def class_indices(self, label: np.ndarray) -> np.ndarray:
        """Return the dataset's labels in the network's numbering."""
        return class_positions(self.codes, len(self.data.classes))[label]

    def right(self, part: Part, probability: Any) -> np.ndarray:
        """Return whether each sample of a part is classified correctly by probabilities (n, classes)."""
        return self.codes[np.asarray(probability).argmax(1)] == part.label

    def predict(self, method: Method, part: Part) -> AdaptationResult:
        """Return the predictions of one method on one part."""
        if method.name in (NONE, EBTSA):
            return self.adapt(part, **({"num_steps": 0} if method.name == NONE else method.own))
        # A shuffled stream: files sorted by class would starve an adapter that keeps state.
        order = np.random.default_rng(self.info["seed"]).permutation(len(part.label))
        if method.name == STREAM:  # over the predictions that users get, TTA included
            return in_order(run_stream(self.network, select_rows(self.adapt(part), order)), order)
        adapter = create_adapter(method.name, **method.own)
        inputs = self._stream(part, order) if adapter.reads == "inputs" else part.select(order).feature
        return in_order(adapter(self.network, inputs), order)

    def _stream(self, part: Part, order: np.ndarray) -> Iterator[Any]:
        """Return the backbone's inputs in batches; kept for the next adapter, those of a target and of the
        validation rows of each source."""
        if self.model.backbone is None:
            return iter(())  # the adapter itself says what it lacks
        samples = next((samples for known, samples in self._prepared if known is part), None)
        if samples is None:
            del self._prepared[: max(0, len(self._prepared) - len(self.sources))]
            dataset = part.dataset.select(order)
            samples = prepare_samples(dataset, self.model.backbone, self.model.device, show=False)
            self._prepared.append((part, samples))
        return samples.batches(slice(0, len(order)))

    def drop_inputs(self) -> None:
        """Free the backbone's inputs, which may be gigabytes on the device; features stay."""
        self._prepared.clear()

    def settings(self, num_steps: int | str = AUTO, **options: Any) -> AdaptSettings:
        """Return test-time settings with some changed; `auto` are those that validation chose."""
        settings = self.model.settings if num_steps == AUTO else self.model.settings_for(int(num_steps))
        inner = {name: value for name, value in options.items() if hasattr(settings.step, name)}
        outer = {name: value for name, value in options.items() if name not in inner}
        settings = replace(settings, step=replace(settings.step, **inner), **outer)
        return settings.off() if num_steps == 0 else settings

    def adapt(self, part: Part, *, num_steps: int | str = AUTO, **options: Any) -> AdaptationResult:
        """Run `ebtsa` with some settings changed; without a number of steps as users get it, TTA included."""
        copies = self.copies(part) if num_steps == AUTO else [CopyFeatures(part.feature, 1.0)]
        tta, thresholds = (self.model.tta, self.model.tta_thresholds) if num_steps == AUTO else ("", ())
        return predict_copies(self.network, copies, self.settings(num_steps, **options), tta, thresholds)

    def copies(self, part: Part) -> list[CopyFeatures]:
        """Return features of the samples and of the copies that TTA averages over; kept for the last part."""
        if not self.model.tta:
            return [CopyFeatures(part.feature, 1.0)]
        if self._copies is None or self._copies[0] is not part:
            self._copies = part, dataset_copies(self.model, part.dataset, self.model.tta, False)
        return self._copies[1]

    def passes(self, method: Method, part: Part) -> int:
        """Return the backbone passes for each sample, without those that the method runs itself."""
        if method.name in ADAPTERS and adapter_traits(method.name).reads == "inputs":
            return 0
        return len(self.copies(part)) if method.auto or method.name == STREAM else 1


def in_order(adapted: AdaptationResult, order: np.ndarray) -> AdaptationResult:
    """Undo a shuffle: row `order[i]` of the returned result is row i of `adapted`."""
    back = np.argsort(order)
    rows: dict[str, Any] = {k: v if v is None else v[back] for k, v in vars(adapted).items()}
    return AdaptationResult(**rows)
