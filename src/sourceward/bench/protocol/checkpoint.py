"""One training, and every method evaluated on it: the same weights and features for all."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation import ADAPTERS, AdaptationResult, EnergyAdaptation, create_adapter
from sourceward.adaptation.base import adapter_traits, mean_answer
from sourceward.bench.protocol.controls import Classifier, fit_control
from sourceward.bench.protocol.measures import class_positions
from sourceward.bench.protocol.methods import AUTO, EBTSA, NONE, Method
from sourceward.bench.speed.throughput import inner_backbone, measure_encoding
from sourceward.data import DomainDataset
from sourceward.estimator import EnergyAdapter
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
    """A trained network with what it takes to evaluate it.

    Args:
        network: in eval mode.
        sources: names.
        codes: code of each of the network's classes in the dataset's numbering.
        data: the whole dataset.
        left_out: domains that were not trained on.
        settings: of test time.
        encode: rescaled features of a part of the dataset.
        estimator: where the features are the user's own.
        info: seconds and memory of the training, expected gain, settings.
        settings_for: settings of test time for a number of steps; `settings` if None.
        transform: features of transformed copies of a part of the dataset, where the model uses TTA.
    """

    network: Network
    sources: tuple[str, ...]
    codes: np.ndarray
    data: DomainDataset
    left_out: tuple[str, ...]
    settings: AdaptSettings
    encode: Callable[[DomainDataset], Tensor]
    estimator: EnergyAdapter | None = None
    info: dict[str, Any] = field(default_factory=dict)
    settings_for: Callable[[int], AdaptSettings] | None = None
    transform: Callable[[DomainDataset], list[list[Tensor]]] | None = None
    _controls: dict[str, tuple[Classifier, np.ndarray, float]] = field(default_factory=dict)
    _prepared: tuple[Part, Any] | None = None
    _copies: tuple[Part, list[list[Tensor]]] | None = None

    def part(self, domain: str) -> Part:
        """Return all samples of one domain."""
        dataset = self.data.of_domains([domain])
        return Part(dataset, self.encode(dataset))

    @cached_property
    def source_part(self) -> Part:
        """All samples of the sources together."""
        dataset = self.data.without(self.left_out)
        return Part(dataset, self.encode(dataset))

    @cached_property
    def validation(self) -> list[Part]:
        """Rows of each source that were not trained on; empty where all were."""
        sources = self.data.without(self.left_out)
        rows = sources.train_val_indices(self.fraction)[1]
        parts = [rows[sources.domains[rows] == code] for code in range(len(sources.domain_names))]
        if self.info.get("frozen"):  # features are cached by domain: those of a part would be computed again
            return [self.source_part.select(part) for part in parts if len(part)]
        chosen = [sources.select(part) for part in parts if len(part)]
        return [Part(dataset, self.encode(dataset)) for dataset in chosen]

    def control(self, name: str) -> tuple[Classifier, np.ndarray, float]:
        """Return a control trained on the rows of heads and energies, its class codes, and its seconds."""
        if name not in self._controls:
            sources = self.source_part
            held = self.info.get("hold_out", True)
            rows = sources.dataset.train_val_indices(self.fraction)[0] if held else slice(None)
            label, domain = sources.label[rows], sources.dataset.domains[rows]
            start = time.perf_counter()
            fitted = fit_control(name, self.raw(sources)[rows], label, domain, self.info.get("seed", 0))
            self._controls[name] = *fitted, time.perf_counter() - start
        return self._controls[name]

    def raw(self, part: Part) -> np.ndarray:
        """Return features in the units in which heads and energies first see them."""
        if part.dataset.kind == "features":
            return np.asarray(part.dataset.items, dtype=np.float32)
        return self.network.raw(part.feature).cpu().numpy()

    @property
    def fraction(self) -> float:
        """Share of the sources that is used for validation, where the data has no lists."""
        return self.info.get("validation_fraction", 0.1)

    @cached_property
    def encode_ms(self) -> float:
        """Milliseconds of the backbone for each sample, without decoding; 0 without a backbone."""
        return 0.0 if self.network.backbone is None else measure_encoding(self.network, self.data)

    def class_indices(self, label: np.ndarray) -> np.ndarray:
        """Return the dataset's labels in the network's numbering."""
        return class_positions(self.codes, len(self.data.classes))[label]

    def right(self, part: Part, probability: Any) -> np.ndarray:
        """Return whether each sample of a part is classified correctly by probabilities (n, classes)."""
        return self.codes[np.asarray(probability).argmax(1)] == part.label

    def predict(self, method: Method, part: Part) -> AdaptationResult:
        """Return the predictions of one method on one part."""
        options = method.own
        if method.name == NONE:
            return self.adapt(part, num_steps=0)
        if method.name == EBTSA:
            return self.adapt(part, **options)
        if "settings" in getattr(ADAPTERS[method.name], "__dataclass_fields__", {}):
            options["settings"] = self.settings
        adapter = create_adapter(method.name, **options)
        # A shuffled stream: files sorted by class would starve an adapter that keeps state.
        order = np.random.default_rng(self.info.get("seed", 0)).permutation(len(part.label))
        if adapter.reads == "inputs":
            adapted = adapter(self.network, self._stream(part, order))
        else:
            rows = torch.from_numpy(order).to(part.feature.device)
            adapted = adapter(self.network, part.feature[rows])
        return in_order(adapted, order)

    def _stream(self, part: Part, order: np.ndarray) -> Iterator[Any]:
        """Return the backbone's inputs in batches; kept for the next adapter."""
        from sourceward.data.loading import prepare_samples

        backbone = self.network.backbone
        if backbone is None:
            return iter(())  # the adapter itself says what it lacks
        if self._prepared is not None and self._prepared[0] is part:
            return self._prepared[1].batches(slice(0, len(order)))
        self._prepared, dataset = None, part.dataset.select(order)
        samples = prepare_samples(dataset, inner_backbone(backbone), self.network.scale.device, show=False)
        self._prepared = part, samples
        return samples.batches(slice(0, len(dataset)))

    def adapt(self, part: Part, **options: Any) -> AdaptationResult:
        """Run `ebtsa` with some settings changed; without a number of steps, as validation chose it."""
        if self.estimator is not None:
            with changed(self.estimator, options) as estimator:
                return estimator.adapt(np.asarray(part.dataset.items, dtype=np.float32))
        given = {k: v for k, v in options.items() if (k, v) != ("num_steps", AUTO)}
        steps = given.get("num_steps")
        base = self.settings_for(steps) if self.settings_for and steps is not None else self.settings
        inner = {k: v for k, v in given.items() if k in self.settings.step.__dataclass_fields__}
        outer = {k: v for k, v in given.items() if k not in inner}
        settings = replace(base, step=replace(base.step, **inner), **outer)
        settings = settings.off() if steps == 0 else settings
        settings.check()
        run = partial(EnergyAdaptation(settings), self.network)
        copies = self.copies(part) if steps is None else []
        return mean_answer([run(part.feature), *(mean_answer([*map(run, c)]) for c in copies)])

    def copies(self, part: Part) -> list[list[Tensor]]:
        """Return features of the transformed copies that TTA averages over; kept for the last part."""
        if self.transform is None:
            return []
        if self._copies is None or self._copies[0] is not part:
            self._copies = part, self.transform(part.dataset)
        return self._copies[1]

    def passes(self, method: Method, part: Part) -> int:
        """Return the backbone passes for each sample, without those that the method runs itself."""
        if method.name in ADAPTERS and adapter_traits(method.name).reads == "inputs":
            return 0
        return 1 + (sum(map(len, self.copies(part))) if method.auto else 0)


def in_order(adapted: AdaptationResult, order: np.ndarray) -> AdaptationResult:
    """Undo a shuffle: row `order[i]` of the returned result is row i of `adapted`."""
    back = np.argsort(order)
    rows: dict[str, Any] = {k: v if v is None else v[back] for k, v in vars(adapted).items()}
    return AdaptationResult(**rows)


@contextmanager
def changed(estimator: EnergyAdapter, options: dict[str, Any]) -> Iterator[EnergyAdapter]:
    """Set other settings of test time inside the block."""
    own = estimator.get_params()
    try:
        yield estimator.set_params(**options)
    finally:
        estimator.set_params(**{name: own[name] for name in options})
