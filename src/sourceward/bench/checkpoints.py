"""One training, and everything that is asked of it: the same weights and features for every adapter."""

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
from sourceward.bench.controls import Answer, linear_control, single_sample_control
from sourceward.bench.specs import AUTO, LINEAR, NONE, OURS, SINGLE, Spec
from sourceward.bench.throughput import inner_backbone, measure_encoding
from sourceward.data import DomainDataset
from sourceward.estimator import EnergyAdapter
from sourceward.nn import Network
from sourceward.settings import AdaptSettings


@dataclass(frozen=True)
class Part:
    """Samples of one domain as a checkpoint sees them."""

    dataset: DomainDataset
    feature: Tensor
    """(n, dim), rescaled."""

    @property
    def label(self) -> np.ndarray:
        return self.dataset.labels

    def select(self, rows: np.ndarray) -> "Part":
        """Some of the samples."""
        return Part(self.dataset.select(rows), self.feature[torch.from_numpy(rows).to(self.feature.device)])


@dataclass
class Checkpoint:
    """A trained network with what it takes to ask it.

    Args:
        network: in eval mode.
        sources: names.
        codes: code of each of the network's classes in the dataset's numbering.
        data: the whole dataset.
        left_out: domains that were not trained on.
        settings: of test time.
        encode: rescaled features of a part of the dataset.
        estimator: where the features are the user's own.
        info: seconds and memory of the training, what was promised, settings.
        asked: settings of test time for a number of steps, as if nothing was tuned; `settings` if None.
        view: features of other pictures of a part of the dataset, about which the self-tuned model asks too.
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
    asked: Callable[[int], AdaptSettings] | None = None
    view: Callable[[DomainDataset], list[list[Tensor]]] | None = None
    _controls: dict[str, tuple[Answer, np.ndarray, float]] = field(default_factory=dict)
    _prepared: tuple[Part, Any] | None = None
    _pictures: tuple[Part, list[list[Tensor]]] | None = None

    def part(self, domain: str) -> Part:
        """All samples of one domain."""
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
        if self.info.get("frozen"):  # features are kept by domain: a part of one would be computed anew
            return [self.source_part.select(part) for part in parts if len(part)]
        chosen = [sources.select(part) for part in parts if len(part)]
        return [Part(dataset, self.encode(dataset)) for dataset in chosen]

    def control(self, name: str) -> tuple[Answer, np.ndarray, float]:
        """A control trained on what heads and energies were trained on, the codes of the classes that it
        knows, and its seconds."""
        if name not in self._controls:
            sources = self.source_part
            held = self.info.get("hold_out", True)
            rows = sources.dataset.train_val_indices(self.fraction)[0] if held else slice(None)
            label, domain = sources.label[rows], sources.dataset.domains[rows]
            start = time.perf_counter()
            make = {LINEAR: linear_control, SINGLE: single_sample_control}[name]
            answer = make(self.raw(sources)[rows], label, domain, self.info.get("seed", 0))
            self._controls[name] = answer, np.unique(label), time.perf_counter() - start
        return self._controls[name]

    def raw(self, part: Part) -> np.ndarray:
        """Features in the units in which heads and energies first meet them."""
        if part.dataset.kind == "features":
            return np.asarray(part.dataset.items, dtype=np.float32)
        return self.network.raw(part.feature).cpu().numpy()

    @property
    def fraction(self) -> float:
        """Share of the sources that validates, where the data has no lists."""
        return self.info.get("validation_fraction", 0.1)

    def streams(self, spec: Spec) -> bool:
        """Whether a contestant does the backbone's work itself."""
        return spec.name in ADAPTERS and adapter_traits(spec.name).reads == "inputs"

    @cached_property
    def encode_ms(self) -> float:
        """Milliseconds of the backbone for each sample, without decoding; 0 where there is none."""
        if self.network.backbone is None:
            return 0.0
        return measure_encoding(self.network, self.data)

    def numbers(self, label: np.ndarray) -> np.ndarray:
        """The dataset's labels in the network's numbering; for analyses, where every class is known."""
        place = np.zeros(len(self.data.classes), dtype=np.int64)
        place[self.codes] = np.arange(len(self.codes))
        return place[label]

    def answer(self, spec: Spec, part: Part) -> AdaptationResult:
        """What one adapter says of one part."""
        options = spec.own
        if spec.name == NONE:
            return self.run_chain(part, num_steps=0)
        if spec.name == OURS:
            return self.run_chain(part, **options)
        if "settings" in getattr(ADAPTERS[spec.name], "__dataclass_fields__", {}):
            options["settings"] = self.settings
        adapter = create_adapter(spec.name, **options)
        # A stream in an order of its own: files sorted by class would starve an adapter that keeps state.
        order = np.random.default_rng(self.info.get("seed", 0)).permutation(len(part.label))
        if adapter.reads == "inputs":
            adapted = adapter(self.network, self._stream(part, order))
        else:
            rows = torch.from_numpy(order).to(part.feature.device)
            adapted = adapter(self.network, part.feature[rows])
        return in_order(adapted, order)

    def _stream(self, part: Part, order: np.ndarray) -> Iterator[Any]:
        """What the backbone takes, in batches; kept for the next adapter."""
        from sourceward.data.loading import prepare_samples

        backbone = self.network.backbone
        if backbone is None:
            return iter(())  # the adapter itself says what it misses
        if self._prepared is not None and self._prepared[0] is part:
            return self._prepared[1].batches(slice(0, len(order)))
        self._prepared, dataset = None, part.dataset.select(order)
        samples = prepare_samples(dataset, inner_backbone(backbone), self.network.scale.device, show=False)
        self._prepared = part, samples
        return samples.batches(slice(0, len(dataset)))

    def run_chain(self, part: Part, **options: Any) -> AdaptationResult:
        """Our own adapter with some settings changed; as the model tuned itself where no number of steps is
        among them."""
        if self.estimator is not None:
            with changed(self.estimator, options) as estimator:
                return estimator.adapt(np.asarray(part.dataset.items, dtype=np.float32))
        given = {k: v for k, v in options.items() if (k, v) != ("num_steps", AUTO)}
        base = self.asked(given["num_steps"]) if self.asked and "num_steps" in given else self.settings
        inner = {k: v for k, v in given.items() if k in self.settings.step.__dataclass_fields__}
        outer = {k: v for k, v in given.items() if k not in inner}
        settings = replace(base, step=replace(base.step, **inner), **outer)
        settings = settings.off() if given.get("num_steps") == 0 else settings
        settings.check()
        answer = partial(EnergyAdaptation(settings), self.network)
        pictures = self.pictures(part) if "num_steps" not in given else []
        return mean_answer([answer(part.feature), *(mean_answer([*map(answer, p)]) for p in pictures)])

    def pictures(self, part: Part) -> list[list[Tensor]]:
        """Of each view that the self-tuned model asks about; those of the last part are kept."""
        if self.view is None:
            return []
        if self._pictures is None or self._pictures[0] is not part:
            self._pictures = part, self.view(part.dataset)
        return self._pictures[1]

    def passes(self, spec: Spec, part: Part) -> int:
        """Of the backbone for each sample, beside those that a contestant does itself."""
        if self.streams(spec):
            return 0
        return 1 + (sum(map(len, self.pictures(part))) if spec.tuned else 0)


def in_order(adapted: AdaptationResult, order: np.ndarray) -> AdaptationResult:
    """Row `order[i]` of the result is row i of the stream."""
    place = np.argsort(order)

    def rows(name: str) -> Any:
        value = getattr(adapted, name)
        return value if value is None else value[place]

    return AdaptationResult(**{name: rows(name) for name in AdaptationResult.__dataclass_fields__})


@contextmanager
def changed(estimator: EnergyAdapter, options: dict[str, Any]) -> Iterator[EnergyAdapter]:
    """The estimator with other settings of test time, for a while."""
    own = estimator.get_params()
    try:
        yield estimator.set_params(**options)
    finally:
        estimator.set_params(**{name: own[name] for name in options})
