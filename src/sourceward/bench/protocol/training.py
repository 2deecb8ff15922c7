"""Train checkpoints: `fit` for features, texts and images alike."""

import hashlib
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError
from sourceward._util.reading import open_regular, regular_size
from sourceward.bench.protocol.checkpoint import Checkpoint
from sourceward.data import DomainDataset, decode_images
from sourceward.data.loading import image_geometry
from sourceward.data.stream import fits_in_memory
from sourceward.fitting import fit, keep_features
from sourceward.fitting.checks import make_backbone
from sourceward.model import load
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.settings import AdaptSettings
from sourceward.training.configuration import NONE, FitSettings, is_pretrained, settings_for
from sourceward.training.presets import PRESETS
from sourceward.training.run_folder import CONFIG, LAST

FIXED = {"num_steps": AdaptSettings.num_steps, "tta": NONE}
"""Settings of a training without validation, where only methods with a number of steps are evaluated."""


@dataclass(frozen=True)
class Training:
    """How checkpoints are trained.

    Args:
        settings: of `fit`.
        device: `cpu`, `cuda` or `auto`.
        last: take the last iteration's weights, whatever source validation says.
        backbone, weights, freeze, preset: of `fit`.
        tune: choose steps and TTA by leave-one-domain-out validation. Weights are the same either way.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    last: bool = False
    backbone: str | None = None
    weights: str | None = "default"
    freeze: bool = False
    preset: str | None = None
    tune: bool = True

    def identity(self) -> dict[str, Any]:
        """Return what the trained weights depend on: the content of a file of weights, not its name; the
        device that is used, not the word for it."""
        own = {name: value for name, value in asdict(self).items() if name != "tune"}
        return own | {"weights": _content(self.weights), "device": choose_device(self.device).type}

    def fit_settings(self, kind: str) -> FitSettings:
        """Return the settings that `fit` uses for data of a kind; refuses wrong ones."""
        if kind == "features" and (self.preset or self.backbone or self.freeze):
            raise InputError(
                "Features need no backbone and no preset: leave them out, or name raw images or texts."
            )
        trains = kind != "features" and not self.freeze
        pretrained = is_pretrained(kind, self.spec, self.weights)
        layer = PRESETS[self.preset].layer(trains) if self.preset else None
        return settings_for(trains, layer, self.fit_layer(kind), pretrained=pretrained)

    def fit_layer(self, kind: str) -> dict[str, Any]:
        """Return the settings, with the last weights of a fine-tuned backbone where `last` says so."""
        preset = PRESETS[self.preset].settings if self.preset else {}
        recipe = self.settings.get("recipe", preset.get("recipe", FitSettings.recipe))
        finetunes = kind != "features" and not self.freeze and recipe == "two-stage"
        return self.settings | ({"finetune.select": "last"} if self.last and finetunes else {})

    def prepare(self, data: DomainDataset) -> None:
        """Compute once, on all cores, what several processes need: features of a frozen backbone, or decoded
        images of one that is trained."""
        settings = self.fit_settings(data.kind)
        if self.freeze and self.weights is not None:
            keep_features(data, self.spec, self.weights, settings, self.device)
        elif not self.freeze and data.kind == "image":
            backbone = make_backbone(data, self.spec, self.weights, settings, True, 0)
            if backbone is not None:
                _keep_images(data, backbone)

    @property
    def spec(self) -> str | None:
        return self.backbone or (PRESETS[self.preset].backbone if self.preset else None)


def _keep_images(data: DomainDataset, backbone: Backbone) -> None:
    """Decode image files into the cache as the backbone takes them, where they fit into memory."""
    if isinstance(backbone.preprocessing, ImagePreprocessing) and not isinstance(data.items, np.ndarray):
        shape = image_geometry(backbone.preprocessing)
        if fits_in_memory(data, shape):
            decode_images(data, shape)


def _content(weights: str | None) -> str | None:
    """Return the hash of a file of weights, of each of several by comma; anything else unchanged."""
    if weights is None:
        return None
    if regular_size(weights) is not None:
        return f"a file of hash {_hash(Path(weights), Path(weights).stat().st_mtime_ns)}"
    return ",".join(str(_content(each)) for each in weights.split(",")) if "," in weights else weights


@cache
def _hash(file: Path, changed: int) -> str:
    """Return the hash of a file as of its time of change."""
    with open_regular(file, None) as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()[:16]


def train(
    data: DomainDataset, training: Training, left_out: tuple[str, ...], seed: int, folder: Path
) -> Checkpoint:
    """Return the checkpoint of one (data, target, seed), from `folder` where it was trained before."""
    fixed = not training.tune and not (folder / CONFIG).exists()
    out = folder.with_name(f"{folder.name}-fixed") if fixed else folder
    model = fit(
        data,
        out=out,
        target=left_out,
        backbone=training.backbone,
        weights=training.weights,
        freeze=training.freeze,
        preset=training.preset,
        settings=(FIXED if fixed else {}) | training.fit_layer(data.kind),
        device=training.device,
        seed=seed,
        progress=False,
    )
    if training.last and (out / LAST).exists():
        model = load(out, training.device, weights=LAST)
    metrics, trained = model.info["metrics"], model.info["training"]
    info = {
        "rows": model.info["data"]["samples"],
        "fit_seconds": metrics["seconds"],
        "expected_gain": model.info.get("expected_gain"),
        "validation": metrics,
        "validation_fraction": trained["settings"]["validation_fraction"],
        "backbone": trained["backbone"],
        "frozen": training.freeze,
        "cost": model.info.get("cost"),
        "seed": seed,
    }
    return Checkpoint(model, data, left_out, info, out)
