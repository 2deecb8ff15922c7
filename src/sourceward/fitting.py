"""From a dataset to a model folder.

    fit("photos/", out="run", target="sketch")                    trains the backbone, then heads and energies
    fit("photos/", out="run", target="sketch", freeze=True)       trains heads and energies on its features
    fit("features.npz", out="run")                                needs no backbone

Run the same call again after a kill, and it goes on to the same bits; after the end, and it loads the model.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from sourceward._util.devices import Processes, choose_device, join_processes
from sourceward._util.errors import InputError
from sourceward._util.storage import tensor_hash
from sourceward.data import DomainDataset, open_dataset
from sourceward.data.corruptions import SMALLEST_SIDE
from sourceward.data.diagnosis import BROKEN, refuse
from sourceward.data.features import extract_features
from sourceward.data.split import split_sources as arrange
from sourceward.data.transforms import ADAIN
from sourceward.model import Model, load
from sourceward.nn.backbones import Backbone, ImagePreprocessing, create_backbone
from sourceward.training.configuration import AUTO, NONE, FitSettings, has_learned, settings_for
from sourceward.training.joint import Run
from sourceward.training.presets import PRESETS
from sourceward.training.run_folder import RunFolder, open_board, software
from sourceward.training.stage import Job
from sourceward.training.styles import source_styles
from sourceward.training.task import Prepared, Task, make_task, prepare
from sourceward.training.two_stage import Pretend, finish_two_stage
from sourceward.validation.crossfit import crossfit
from sourceward.validation.leave_one_domain_out import FEWEST_SOURCES
from sourceward.validation.views import statistics_layers


def fit(
    data: str | Path | DomainDataset,
    *,
    out: str | Path,
    target: str | Sequence[str] = (),
    backbone: str | Path | nn.Module | None = None,
    weights: Any = "default",
    freeze: bool = False,
    preset: str | None = None,
    settings: FitSettings | Mapping[str, Any] | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    allow_missing: bool = False,
    tensorboard: bool = False,
    progress: bool | None = None,
) -> Model:
    """Train on every domain but `target` and write the model folder `out`.

    Args:
        data: anything `open_dataset` takes; or what it returns, where its reader is given options.
        out: the run's folder; an unfinished run of the same configuration goes on, a finished one is loaded.
        target: domains to leave out; those that the dataset's owners hold out when none are named.
        backbone: see `create_backbone`; that of the preset, or `timm:resnet18` and
            `hf:distilbert-base-uncased`, when None. Features need none.
        weights: see `create_backbone`.
        freeze: never train the backbone; its features are computed once and kept on disk.
        preset: a name in `PRESETS`, whose settings come before `settings`; where no backbone is trained,
            those of heads and energies.
        settings: whole, or only what differs from the defaults.
        device: `cpu`, `cuda` or `auto`.
        seed: of everything random.
        allow_missing: accept a class that a source has no samples of.
        tensorboard: write metrics for TensorBoard, too.
        progress: show bars; when standard error is a terminal if None.
    """
    if not 0 <= seed < 2**32:
        raise InputError(f"Expected `seed` to be 0 or more and below 2^32, but got {seed}.")
    processes, place = join_processes(device)
    sources = _sources(open_dataset(data), target, allow_missing)
    chosen = PRESETS[preset] if preset is not None else None
    raw = sources.kind != "features"
    spec = backbone or (chosen.backbone if chosen and raw else None)
    trains = raw and not freeze
    if isinstance(settings, FitSettings):
        plan = settings
        plan.refuse_unused(trains)
    else:
        learned = has_learned(sources.kind, spec, weights)
        plan = settings_for(trains, chosen.layer(trains) if chosen else None, settings, learned=learned)
    body = _backbone(sources, spec, weights, plan, trains, seed)
    _check_shifts(sources, body, plan, trains)
    _check_crossfit(sources, plan, trains)
    _check_views(body, plan, trains)
    configuration = _configuration(sources, body, freeze, plan, seed, processes)
    folder = RunFolder(Path(out), configuration)
    try:
        if folder.open():
            with processes.main_first():
                folder.tidy()
            return load(out, place)
        board = open_board(folder.path) if tensorboard and processes.is_main else None
        with processes.main_first():
            styles = source_styles(sources, body, plan, place)
        job = Job(folder, plan, seed, processes, progress, board, styles)
        info = configuration | {"software": software()}
        if body is not None and trains and plan.recipe == "two-stage":
            pretend = _pretend(sources, body, job, place)
            prepared = prepare(arrange(sources, plan.validation_fraction), body, job, place)
            return finish_two_stage(prepared, body, job, info, pretend)
        return Run(make_task(sources, body, freeze, job, place), job).finish(info)
    except (OSError, SafetensorError) as error:
        raise InputError(f"Could not write the run to '{out}': {error}. Is the disk full?") from error


def keep_features(
    dataset: DomainDataset, backbone: Any, weights: Any, plan: FitSettings, device: str
) -> None:
    """Compute and keep on disk what `fit(freeze=True)` will ask for, of every domain."""
    body = _backbone(dataset, backbone, weights, plan, False, 0)
    if body is not None:
        extract_features(dataset, body, choose_device(device))


def _sources(dataset: DomainDataset, target: str | Sequence[str], allow_missing: bool) -> DomainDataset:
    """The domains to train on, or why they cannot be."""
    left_out = ((target,) if isinstance(target, str) else tuple(target)) or dataset.targets
    sources = dataset.without(left_out) if left_out else dataset
    broken = tuple(p for p in sources.problems if p.kind in BROKEN)
    refusals = refuse(sources, broken, allow_missing)
    if refusals:
        raise InputError(f"{refusals[0].reason} {refusals[0].fix}")
    return sources


def _backbone(
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
    crop = settings.crop_fraction
    if isinstance(backbone.preprocessing, ImagePreprocessing) and crop is not None:
        backbone.preprocessing = replace(backbone.preprocessing, crop_fraction=crop)
    return backbone.freeze_batchnorm(not trains or held)


def _check_shifts(
    sources: DomainDataset, backbone: Backbone | None, settings: FitSettings, trains: bool
) -> None:
    """Refuse before the work what a lone source cannot practise on."""
    if backbone is None or not settings.corrupts(sources.kind, len(sources.domain_names)):
        return
    if trains and settings.recipe == "joint":
        raise InputError(
            "With one source, the recipe 'joint' practises on noise only: set `shifts=noise`, or leave "
            "`recipe=two-stage`."
        )
    size = getattr(backbone.preprocessing, "size", (SMALLEST_SIDE, SMALLEST_SIDE))
    if min(size) < SMALLEST_SIDE:
        raise InputError(
            f"Images of {min(size)} pixels are too small to corrupt, which one source practises on: set "
            f"`image_size={SMALLEST_SIDE}` or more, or `shifts=noise`."
        )


def _check_crossfit(sources: DomainDataset, settings: FitSettings, trains: bool) -> None:
    """Refuse before the work what cross-fitting has no part in."""
    few = len(sources.domain_names) < FEWEST_SOURCES
    needs = (
        ("a backbone that is trained in two stages", not trains or settings.recipe != "two-stage"),
        ("`num_steps=auto`", settings.num_steps != "auto"),
        (f"{FEWEST_SOURCES} or more sources", few),
    )
    for need, missing in needs:
        if settings.crossfit and missing:
            raise InputError(f"Expected {need} for `crossfit=true`, but there is none here. Leave it out.")


def _check_views(backbone: Backbone | None, settings: FitSettings, trains: bool) -> None:
    """Refuse before the work what the finished model could not be asked."""
    if settings.views in (AUTO, NONE):
        return
    if backbone is None or backbone.kind != "image":
        raise InputError("`views` are looks at an image, and there are none here: leave it out.")
    if ADAIN in settings.views and not (trains and settings.recipe == "two-stage"):
        raise InputError(
            "`views=feature_statistics` belongs to a backbone that is trained in two stages: leave it out."
        )
    if ADAIN in settings.views and not statistics_layers(backbone.eval()):
        raise InputError(
            f"{backbone.spec} has no early maps, and so no `feature_statistics`: name other views."
        )


def _pretend(sources: DomainDataset, backbone: Backbone, job: Job, device: torch.device) -> Pretend | None:
    """Cross-fitting, where it is asked for and there is something to tune."""
    settings = job.settings
    if not settings.crossfit:
        return None

    def arranged(part: DomainDataset, backbone: Backbone, own: Job) -> Prepared:
        return prepare(arrange(part, settings.validation_fraction), backbone, own, device)

    return partial(crossfit, sources, copy.deepcopy(backbone), job, arranged)


def _configuration(
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


__all__ = ["FitSettings", "Prepared", "Task", "fit"]
