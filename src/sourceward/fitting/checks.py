"""What `fit` decides before any work: sources, backbone, rows, candidates, and what it refuses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sourceward._util.devices import Processes
from sourceward._util.errors import InputError
from sourceward._util.storage import tensor_hash
from sourceward.data import DomainDataset
from sourceward.data.corruptions import SMALLEST_SIDE
from sourceward.data.diagnosis import BROKEN, refuse
from sourceward.estimator.classifier import warn_not_estimated
from sourceward.nn.backbones import Backbone, ImagePreprocessing, create_backbone
from sourceward.nn.backbones.backbone import SEVERAL, reads
from sourceward.settings import AUTO
from sourceward.training.configuration import NONE, FitSettings, is_pretrained, settings_for
from sourceward.training.finetune import FINETUNE_METHODS
from sourceward.training.presets import PRESETS
from sourceward.validation.crossfit import statistics_layers
from sourceward.validation.folds import MIN_SOURCES

FROZEN_TTA = ("fourier",)
TRAINED_TTA = ("hflip+crop+adain", "hflip+crop+adain_mean", "rotate", "hflip+crop", "hflip")
"""Sets of transforms that leave-one-domain-out validation chooses from."""


def select_sources(dataset: DomainDataset, target: str | Sequence[str], allow_missing: bool) -> DomainDataset:
    """The domains to train on, or why they cannot be."""
    left_out = ((target,) if isinstance(target, str) else tuple(target)) or dataset.targets
    sources = dataset.without(left_out) if left_out else dataset
    broken = tuple(p for p in sources.problems if p.kind in BROKEN)
    refusals = refuse(sources, broken, allow_missing)
    if refusals:
        raise InputError(f"{refusals[0].reason} {refusals[0].fix}")
    return sources


def make_backbone(
    sources: DomainDataset, spec: Any, weights: Any, settings: FitSettings, trains: bool, seed: int
) -> Backbone | None:
    if sources.kind == "features":
        if spec is not None:
            raise InputError(f"Features need no backbone, but {spec!r} was given. Leave it out.")
        return None
    spec = spec or ("timm:resnet18" if sources.kind == "image" else "hf:distilbert-base-uncased")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of weights that start at random
        options = {"image_size": settings.image_size, "max_length": settings.max_length}
        backbone = create_backbone(spec, weights=weights, **options)  # type: ignore[arg-type]
    held = (settings.finetune if settings.recipe == "two-stage" else settings).freeze_batchnorm
    if isinstance(backbone.preprocessing, ImagePreprocessing):
        given: dict[str, Any] = {"crop_fraction": settings.crop_fraction, "copy_scale": settings.copy_scale}
        given = {name: value for name, value in given.items() if value is not None}
        found = replace(backbone.preprocessing, **given)
        backbone.preprocessing = found if reads(backbone, found.copy_size) else replace(found, copy_scale=1.0)
    return backbone.freeze_batchnorm(not trains or held)


def check_settings(
    sources: DomainDataset, backbone: Backbone | None, settings: FitSettings, trains: bool
) -> None:
    """Refuse settings that this data or this backbone cannot use; warn of what cannot be estimated."""
    if trains and backbone is not None and backbone.family == SEVERAL:
        raise InputError("Several backbones side by side are used frozen: pass --freeze, or name one.")
    if trains and settings.recipe == "two-stage":
        name = settings.finetune.method
        needs = FINETUNE_METHODS[name].needs
        needs.check(name, sources.kind, len(sources.domain_names), settings.finetune)
    _check_shifts(sources, backbone, settings)
    count = len(sources.domain_names)
    fix = "Leave fewer domains out, or split the data by what will differ: site, camera, year."
    found = f"there {'is' if count == 1 else 'are'} {count}"
    warn_not_estimated(settings.num_steps, settings.aggregation, count, found, fix)
    if settings.tta in (AUTO, NONE):
        return
    if backbone is None or backbone.kind != "image":
        raise InputError("`tta` transforms images, and the data holds none: leave it out.")
    if "adain" in settings.tta and not trains:
        raise InputError(
            "`tta=adain` needs a trained backbone: leave --freeze out, or name other transforms."
        )
    if "adain" in settings.tta and not statistics_layers(backbone.eval()):
        raise InputError(f"{backbone.spec} has no early feature maps for `adain`: name other transforms.")


def _check_shifts(sources: DomainDataset, backbone: Backbone | None, settings: FitSettings) -> None:
    """Refuse a single source whose images cannot be corrupted."""
    if backbone is None or not settings.corrupts(sources.kind, len(sources.domain_names)):
        return
    size = getattr(backbone.preprocessing, "size", (SMALLEST_SIDE, SMALLEST_SIDE))
    if min(size) < SMALLEST_SIDE:
        raise InputError(
            f"Images of {min(size)} pixels are too small to corrupt for the negatives of a single source: "
            f"set `image_size={SMALLEST_SIDE}` or more, or `shifts=noise`."
        )


def configuration_of(
    sources: DomainDataset,
    backbone: Backbone | None,
    freeze: bool,
    settings: FitSettings,
    seed: int,
    processes: Processes,
) -> dict[str, Any]:
    """Everything the result depends on; two runs with the same one are the same run."""
    return {
        "data": {
            "name": Path(sources.name).name,
            "fingerprint": sources.fingerprint(),
            "sources": list(sources.domain_names),
            "classes": list(sources.classes),
            "samples": len(sources),
        },
        "training": {
            "backbone": None if backbone is None else backbone.spec,
            "preprocessing": None if backbone is None else backbone.preprocessing.to_dict(),
            "weights": None if backbone is None else tensor_hash(backbone.state_dict()),
            "freeze": freeze,
            "seed": seed,
            "processes": processes.count,
            "settings": settings.to_dict(),
        },
    }


def tta_candidates(
    settings: FitSettings, sources: DomainDataset, sets: Sequence[str], has_statistics: bool
) -> tuple[str, ...]:
    """Sets of transforms to choose from; none where transforms are given or the data is no images."""
    if settings.tta != AUTO or sources.kind != "image" or len(sources.domain_names) < MIN_SOURCES:
        return ()
    usable = (names if has_statistics else names.partition("+adain")[0] for names in sets)
    return tuple(dict.fromkeys(usable))


def chooses(settings: FitSettings, transforms: Sequence[str]) -> bool:
    """Whether leave-one-domain-out validation has anything to choose."""
    return settings.num_steps == AUTO or settings.aggregation == "learned" or bool(transforms)


def training_rows(sources: DomainDataset, settings: FitSettings) -> list[np.ndarray]:
    """The rows of each source to train on, in the order of the data."""
    return _by_domain(sources, sources.train_val_indices(settings.validation_fraction)[0])


def validation_rows(sources: DomainDataset, settings: FitSettings) -> list[np.ndarray]:
    """The rows of each source to validate on."""
    return _by_domain(sources, sources.train_val_indices(settings.validation_fraction)[1])


def _by_domain(sources: DomainDataset, rows: np.ndarray) -> list[np.ndarray]:
    return [rows[sources.domains[rows] == code] for code in range(len(sources.domain_names))]


def choose_settings(
    kind: str,
    backbone: Any,
    weights: Any,
    preset: str | None,
    settings: FitSettings | Mapping[str, Any] | None,
    trains: bool,
) -> tuple[Any, FitSettings]:
    """The backbone's spec and the settings of a fit: those of the recipe, the preset, then the caller."""
    chosen = PRESETS[preset] if preset is not None else None
    spec = backbone or (chosen.backbone if chosen and kind != "features" else None)
    if isinstance(settings, FitSettings):
        settings.refuse_unused(trains)
        return spec, settings
    layer, pretrained = chosen.layer(trains) if chosen else None, is_pretrained(kind, spec, weights)
    return spec, settings_for(trains, layer, settings, pretrained=pretrained)
