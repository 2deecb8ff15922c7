"""One training, and everything that is asked of it: the same weights and features for every adapter."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward.adapters import ADAPTERS, Adapted, EnergyAdaptation, create_adapter
from sourceward.adapters.base import adapter_traits
from sourceward.bench.controls import Answer, linear_control, single_sample_control
from sourceward.bench.specs import AUTO, LINEAR, NONE, OURS, SINGLE, Spec
from sourceward.bench.throughput import inner_backbone, measure_encoding
from sourceward.data import DomainDataset
from sourceward.errors import InputError, unknown_name
from sourceward.estimator import EnergyAdapter
from sourceward.nn import Network
from sourceward.settings import AdaptSettings

LAST = "last.safetensors"
STEPS = 10
"""Of a fit that is asked for other numbers of steps anyway."""


@dataclass(frozen=True)
class Training:
    """How checkpoints are made.

    Args:
        settings: of `EnergyAdapter` for features, of `fit` for images and texts.
        device: `cpu`, `cuda` or `auto`.
        hold_out: keep the validation rows of the sources out of training. `fit` always does.
        last: take the last iteration's weights, whatever source validation says.
        backbone, weights, freeze, preset: of `fit`.
        tune: let features find their number of steps; `fit` always does. Weights are the same either way.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    hold_out: bool = True
    last: bool = False
    backbone: str | None = None
    weights: str | None = "default"
    freeze: bool = False
    preset: str | None = None
    tune: bool = False

    def identity(self) -> dict[str, Any]:
        """What the trained weights depend on."""
        return {name: value for name, value in asdict(self).items() if name != "tune"}

    def check(self, kind: str) -> None:
        """Refuse what makes no sense before the work."""
        from sourceward.fit_settings import settings_for
        from sourceward.presets import PRESETS

        chosen = PRESETS[self.preset] if self.preset is not None else None
        if kind == "features":
            if chosen or self.backbone or self.freeze:
                raise InputError(
                    "Features need no backbone and no preset: leave them out, or name raw images or texts."
                )
            known = EnergyAdapter().get_params()
            for name in self.settings:
                if name not in known:
                    raise unknown_name("setting", name, known)
            EnergyAdapter(**self.settings)._check_settings()
        else:
            trains = not self.freeze
            settings_for(trains, chosen.settings if chosen and trains else None, self.settings)


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
    _controls: dict[str, tuple[Answer, np.ndarray, float]] = field(default_factory=dict)
    _prepared: tuple[Part, Any] | None = None

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

    def answer(self, spec: Spec, part: Part) -> Adapted:
        """What one adapter says of one part."""
        options = spec.own
        if spec.name == NONE:
            return self.walk(part, num_steps=0)
        if spec.name == OURS:
            return self.walk(part, **options)
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
        from sourceward.inputs import prepare_samples

        backbone = self.network.backbone
        if backbone is None:
            return iter(())  # the adapter itself says what it misses
        if self._prepared is not None and self._prepared[0] is part:
            return self._prepared[1].batches(slice(0, len(order)))
        self._prepared, dataset = None, part.dataset.select(order)
        samples = prepare_samples(dataset, inner_backbone(backbone), self.network.scale.device, show=False)
        self._prepared = part, samples
        return samples.batches(slice(0, len(dataset)))

    def walk(self, part: Part, **options: Any) -> Adapted:
        """Our own adapter with some settings changed."""
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
        return EnergyAdaptation(settings)(self.network, part.feature)


def train(
    data: DomainDataset, training: Training, left_out: tuple[str, ...], seed: int, folder: Path
) -> Checkpoint:
    """The checkpoint of one (data, target, seed), from `folder` where it lies there already."""
    make = _on_features if data.kind == "features" else _on_inputs
    checkpoint = make(data, training, left_out, seed, folder)
    checkpoint.info |= {"seed": seed, "hold_out": training.hold_out or data.kind != "features"}
    return checkpoint


def _on_features(
    data: DomainDataset, training: Training, left_out: tuple[str, ...], seed: int, folder: Path
) -> Checkpoint:
    sources = data.without(left_out)
    rows = sources.train_val_indices()[0] if training.hold_out else np.arange(len(sources))
    file, notes = folder / "estimator.safetensors", folder / "notes.json"
    info: dict[str, Any] = json.loads(notes.read_text()) if file.exists() and notes.exists() else {}
    if info and (info["tuned"] or not training.tune):
        estimator = EnergyAdapter.load(file)
        estimator.network_.to(_device(training.device))
    else:
        part, start = sources.select(rows), time.perf_counter()
        names = np.asarray(sources.domain_names)[part.domains]
        steps = {"num_steps": AUTO if training.tune else STEPS}
        given: dict[str, Any] = (
            {"random_state": seed, "verbose": False, "device": training.device} | steps | training.settings
        )
        estimator = EnergyAdapter(**given).fit(
            np.asarray(part.items, dtype=np.float32), part.labels, sample_domain=names
        )
        info = {"rows": len(part), "fit_seconds": time.perf_counter() - start, "tuned": training.tune}
        info["fit_peak_memory_mb"] = peak_memory()
        info["promise"] = plain(getattr(estimator, "promise_", None))
        folder.mkdir(parents=True, exist_ok=True)
        estimator.save(file)
        notes.write_text(json.dumps(info))

    def encode(dataset: DomainDataset) -> Tensor:
        inputs = torch.from_numpy(np.asarray(dataset.items, dtype=np.float32))
        with torch.no_grad():
            return estimator.network_.features(inputs.to(estimator.network_.scale.device))

    return Checkpoint(
        estimator.network_,
        tuple(map(str, estimator.sources_)),
        np.asarray(estimator.classes_),
        data,
        left_out,
        estimator._test_time(),
        encode,
        estimator,
        info,
    )


def _on_inputs(
    data: DomainDataset, training: Training, left_out: tuple[str, ...], seed: int, folder: Path
) -> Checkpoint:
    from sourceward.evaluation import dataset_features
    from sourceward.fitting import fit
    from sourceward.model import load

    out = folder / "model"
    model = fit(
        data,
        out=out,
        target=left_out,
        backbone=training.backbone,
        weights=training.weights,
        freeze=training.freeze,
        preset=training.preset,
        settings=training.settings | ({"finetune.select": "last"} if _two_stage(training) else {}),
        device=training.device,
        seed=seed,
        progress=False,
    )
    if training.last and (out / LAST).exists():
        model = load(out, training.device, weights=LAST)
    metrics = model.info["metrics"]
    info = {
        "rows": model.info["data"]["samples"],
        "fit_seconds": metrics["seconds"],
        "fit_peak_memory_mb": peak_memory(),
        "promise": plain(model.info.get("promise") or metrics.get("promise")),
        "validation": metrics,
        "validation_fraction": model.info["training"]["settings"]["validation_fraction"],
        "backbone": model.info["training"]["backbone"],
        "frozen": training.freeze,
        "cost": plain(model.info.get("cost")),
    }
    return Checkpoint(
        model.network,
        tuple(model.sources),
        np.array([data.classes.index(name) for name in model.classes]),
        data,
        left_out,
        model.settings,
        lambda dataset: dataset_features(model, dataset, False),
        None,
        info,
        model.asked,
    )


def _two_stage(training: Training) -> bool:
    """Whether the last weights of a fine-tuned backbone are asked for."""
    joint = training.preset is not None or training.settings.get("recipe") == "joint"
    return training.last and not training.freeze and not joint


def in_order(adapted: Adapted, order: np.ndarray) -> Adapted:
    """Row `order[i]` of the result is row i of the stream."""
    place = np.argsort(order)

    def rows(name: str) -> Any:
        value = getattr(adapted, name)
        return value if value is None else value[place]

    return Adapted(**{name: rows(name) for name in Adapted.__dataclass_fields__})


@contextmanager
def changed(estimator: EnergyAdapter, options: dict[str, Any]) -> Iterator[EnergyAdapter]:
    """The estimator with other settings of test time, for a while."""
    own = estimator.get_params()
    try:
        yield estimator.set_params(**options)
    finally:
        estimator.set_params(**{name: own[name] for name in options})


def plain(value: Any) -> Any:
    """As JSON values: dataclasses and named tuples become dictionaries, arrays lists."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else str(value)


def peak_memory() -> float:
    """Of the device when there is one, otherwise of the process, in MB (2^20 bytes)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _device(name: str) -> torch.device:
    from sourceward.parallel import choose_device

    return choose_device(name)
