"""How checkpoints are made: by `EnergyAdapter` from features, by `fit` from images and texts."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.cost import Meter, peak_memory
from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError, unknown_name
from sourceward._util.storage import write_whole
from sourceward.bench.checkpoints import Checkpoint
from sourceward.bench.costs import training_peak
from sourceward.bench.specs import AUTO
from sourceward.data import DomainDataset
from sourceward.estimator import EnergyAdapter
from sourceward.fitting import fit, keep_features
from sourceward.model import load
from sourceward.model.evaluation import asked_features, dataset_features
from sourceward.training.configuration import FitSettings, has_learned, settings_for
from sourceward.training.presets import PRESETS

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
        """What the trained weights depend on: the content of a file of weights, not its name; the device that
        is used, not how it was asked for."""
        own = {name: value for name, value in asdict(self).items() if name != "tune"}
        return own | {"weights": _content(self.weights), "device": choose_device(self.device).type}

    def check(self, kind: str) -> None:
        """Refuse what makes no sense before the work."""
        if kind == "features":
            if self.preset or self.backbone or self.freeze:
                raise InputError(
                    "Features need no backbone and no preset: leave them out, or name raw images or texts."
                )
            known = EnergyAdapter().get_params()
            for name in self.settings:
                if name not in known:
                    raise unknown_name("setting", name, known)
            EnergyAdapter(**self.settings)._check_settings()
        else:
            self.fit_settings(kind)

    def fit_settings(self, kind: str) -> FitSettings:
        """What `fit` makes of the settings, for raw data of a kind."""
        trains = not self.freeze
        learned = has_learned(kind, self._spec, self.weights)
        layer = PRESETS[self.preset].layer(trains) if self.preset else None
        return settings_for(trains, layer, self.fit_layer(), learned=learned)

    def fit_layer(self) -> dict[str, Any]:
        """The settings, with the last weights of a fine-tuned backbone where those are asked for."""
        preset = PRESETS[self.preset].settings if self.preset else {}
        recipe = self.settings.get("recipe", preset.get("recipe", FitSettings.recipe))
        tunes = self.last and not self.freeze and recipe == "two-stage"
        return self.settings | ({"finetune.select": "last"} if tunes else {})

    def prepare(self, data: DomainDataset) -> None:
        """Features of a frozen backbone, once and by all cores, before several processes ask for them."""
        if self.freeze and self.weights is not None:
            keep_features(data, self._spec, self.weights, self.fit_settings(data.kind), self.device)

    @property
    def _spec(self) -> str | None:
        return self.backbone or (PRESETS[self.preset].backbone if self.preset else None)


def _content(weights: str | None) -> str | None:
    """The hash of a file of weights; what is no file, as it was given."""
    if weights is None or not Path(weights).is_file():
        return weights
    return f"a file of hash {_hash(Path(weights), Path(weights).stat().st_mtime_ns)}"


@cache
def _hash(file: Path, changed: int) -> str:
    """Of a file as it was when it was last `changed`."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()[:16]


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
        estimator.network_.to(choose_device(training.device))
    else:
        part, start = sources.select(rows), time.perf_counter()
        meter = Meter(choose_device(training.device))
        names = np.asarray(sources.domain_names)[part.domains]
        steps = {"num_steps": AUTO if training.tune else STEPS}
        given: dict[str, Any] = (
            {"random_state": seed, "verbose": False, "device": training.device} | steps | training.settings
        )
        estimator = EnergyAdapter(**given).fit(
            np.asarray(part.items, dtype=np.float32), part.labels, sample_domain=names
        )
        info = {"rows": len(part), "fit_seconds": time.perf_counter() - start, "tuned": training.tune}
        info["fit_peak_memory_mb"] = meter.read()["peak_memory_mb"]
        info["expected_gain"] = plain(getattr(estimator, "expected_gain_", None))
        folder.mkdir(parents=True, exist_ok=True)
        estimator.save(file)
        write_whole(notes, json.dumps(info))

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
    out = folder / "model"
    model = fit(
        data,
        out=out,
        target=left_out,
        backbone=training.backbone,
        weights=training.weights,
        freeze=training.freeze,
        preset=training.preset,
        settings=training.fit_layer(),
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
        "expected_gain": _promised(model.info),
        "validation": metrics,
        "validation_fraction": model.info["training"]["settings"]["validation_fraction"],
        "backbone": model.info["training"]["backbone"],
        "frozen": training.freeze,
        "cost": plain(model.info.get("cost")),
    }
    info["fit_peak_memory_mb"] = training_peak(info) or peak_memory(model.device)
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
        (lambda dataset: asked_features(model, dataset, False)) if model.views else None,
    )


def _promised(info: dict[str, Any]) -> dict[str, Any] | None:
    """Of the walk, and of views where the model asks about them: each was tried alone, so the two add up."""
    walk, views = plain(info.get("expected_gain")), plain(info.get("tta_gain"))
    if views is None or not views["adapts"]:
        return walk
    if walk is None:  # too few sources to play the target
        return views | {"views": views}
    both = {key: walk[key] + views[key] for key in ("gain", "low", "high")}
    return walk | both | {"adapts": True, "views": views}


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
