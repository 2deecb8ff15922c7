"""Train checkpoints: by `EnergyAdapter` on features, by `fit` on images and texts."""

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

from sourceward._util.cost import Meter
from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError, unknown_name
from sourceward._util.storage import write_whole
from sourceward.bench.protocol.checkpoint import Checkpoint
from sourceward.bench.protocol.methods import AUTO
from sourceward.data import DomainDataset
from sourceward.estimator import EnergyAdapter
from sourceward.fitting import fit, keep_features
from sourceward.model import load
from sourceward.model.evaluation import asked_features, dataset_features
from sourceward.training.configuration import FitSettings, has_learned, settings_for
from sourceward.training.presets import PRESETS

LAST = "last.safetensors"
UNTUNED_STEPS = 10
"""Number of steps of a fit whose evaluation always names another one."""


@dataclass(frozen=True)
class Training:
    """How checkpoints are trained.

    Args:
        settings: of `EnergyAdapter` for features, of `fit` for images and texts.
        device: `cpu`, `cuda` or `auto`.
        hold_out: keep the validation rows of the sources out of training. `fit` always does.
        last: take the last iteration's weights, whatever source validation says.
        backbone, weights, freeze, preset: of `fit`.
        tune: choose the number of steps by leave-one-domain-out validation; `fit` always does. Weights are
            the same either way.
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
        """Return what the trained weights depend on: the content of a file of weights, not its name; the
        device that is used, not the word for it."""
        own = {name: value for name, value in asdict(self).items() if name != "tune"}
        return own | {"weights": _content(self.weights), "device": choose_device(self.device).type}

    def check(self, kind: str) -> None:
        """Refuse wrong settings before the work."""
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
        """Return the settings that `fit` uses for raw data of a kind."""
        trains = not self.freeze
        learned = has_learned(kind, self._spec, self.weights)
        layer = PRESETS[self.preset].layer(trains) if self.preset else None
        return settings_for(trains, layer, self.fit_layer(), learned=learned)

    def fit_layer(self) -> dict[str, Any]:
        """Return the settings, with the last weights of a fine-tuned backbone where `last` says so."""
        preset = PRESETS[self.preset].settings if self.preset else {}
        recipe = self.settings.get("recipe", preset.get("recipe", FitSettings.recipe))
        tunes = self.last and not self.freeze and recipe == "two-stage"
        return self.settings | ({"finetune.select": "last"} if tunes else {})

    def prepare(self, data: DomainDataset) -> None:
        """Compute features of a frozen backbone once, on all cores, before several processes need them."""
        if self.freeze and self.weights is not None:
            keep_features(data, self._spec, self.weights, self.fit_settings(data.kind), self.device)

    @property
    def _spec(self) -> str | None:
        return self.backbone or (PRESETS[self.preset].backbone if self.preset else None)


def _content(weights: str | None) -> str | None:
    """Return the hash of a file of weights; anything else unchanged."""
    if weights is None or not Path(weights).is_file():
        return weights
    return f"a file of hash {_hash(Path(weights), Path(weights).stat().st_mtime_ns)}"


@cache
def _hash(file: Path, changed: int) -> str:
    """Return the hash of a file as of its time of change."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()[:16]


def train(
    data: DomainDataset, training: Training, left_out: tuple[str, ...], seed: int, folder: Path
) -> Checkpoint:
    """Return the checkpoint of one (data, target, seed), from `folder` where it was trained before."""
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
        steps = {"num_steps": AUTO if training.tune else UNTUNED_STEPS}
        given: dict[str, Any] = (
            {"random_state": seed, "verbose": False, "device": training.device} | steps | training.settings
        )
        estimator = EnergyAdapter(**given).fit(
            np.asarray(part.items, dtype=np.float32), part.labels, sample_domain=names
        )
        info = {"rows": len(part), "fit_seconds": time.perf_counter() - start, "tuned": training.tune}
        info["cost"] = {"fit": meter.read()}
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
        "expected_gain": _expected_gain(model.info),
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
        (lambda dataset: asked_features(model, dataset, False)) if model.views else None,
    )


def _expected_gain(info: dict[str, Any]) -> dict[str, Any] | None:
    """Return the expected gain of steps and TTA: each was validated alone, so the two add up."""
    steps, tta = plain(info.get("expected_gain")), plain(info.get("tta_gain"))
    if tta is None or not tta["adapts"]:
        return steps
    if steps is None:  # too few sources for leave-one-domain-out validation
        return tta | {"tta": tta}
    both = {key: steps[key] + tta[key] for key in ("gain", "low", "high")}
    return steps | both | {"adapts": True, "tta": tta}


def plain(value: Any) -> Any:
    """Return JSON values: dataclasses and named tuples become dictionaries, arrays lists."""
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
