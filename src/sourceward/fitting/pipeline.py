"""The pipeline of `fit`: from a dataset to a model folder.

    fit("photos/", out="run", target="sketch")                fine-tunes the backbone, then heads and energies
    fit("photos/", out="run", target="sketch", freeze=True)   trains heads and energies on its features
    fit("features.npz", out="run")                            needs no backbone

Run the same call again after a kill, and it goes on to the same bits; after the end, and it loads the model.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn

from sourceward._util.devices import Meter, choose_device, join_processes
from sourceward._util.errors import InputError
from sourceward._util.progress import announce
from sourceward._util.storage import held_folder
from sourceward.data import DomainDataset, open_dataset
from sourceward.data.corruptions import EXTRA_CORRUPTIONS
from sourceward.data.features import (
    corrupted_features,
    extract_corrupted,
    extract_features,
    has_features,
)
from sourceward.data.loading import SourceData, encode, load_sources
from sourceward.fitting.adapter import attach, fit_adapter, make_estimator, validation_scores
from sourceward.fitting.checks import (
    FROZEN_TTA,
    TRAINED_TTA,
    check_settings,
    choose_settings,
    chooses,
    configuration_of,
    make_backbone,
    select_sources,
    training_rows,
    tta_candidates,
    validation_rows,
)
from sourceward.fitting.estimate import estimate
from sourceward.model import Model, load
from sourceward.model.held_out import held_out_statistics
from sourceward.nn.backbones import Backbone
from sourceward.settings import AUTO
from sourceward.training.configuration import NONE, FitSettings
from sourceward.training.joint import train_joint
from sourceward.training.members import finetune_members
from sourceward.training.run_folder import Context, RunFolder, check_run_folder, open_board, software
from sourceward.validation.crossfit import crossfit_folds, source_statistics
from sourceward.validation.folds import MIN_SOURCES, Source
from sourceward.validation.frozen import FrozenSources, source_amplitudes

LONG_SECONDS = 10.0
"""Of feature extraction that is announced."""


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
        freeze: do not train the backbone; its features are computed once and cached on disk.
        preset: a name in `PRESETS`, whose settings come before `settings`; with a frozen backbone, those of
            heads and energies.
        settings: whole, or only what differs from the defaults.
        device: `cpu`, `cuda` or `auto`.
        seed: of everything random.
        allow_missing: accept a class that a source has no samples of.
        tensorboard: write metrics for TensorBoard, too.
        progress: show bars; when standard error is a terminal if None.
    """
    if not 0 <= seed < 2**32:
        raise InputError(f"Expected `seed` to be 0 or more and below 2^32, but got {seed}.")
    check_run_folder(out)  # before weights are downloaded
    processes, place = join_processes(device)
    sources = select_sources(open_dataset(data), target, allow_missing)
    trains = sources.kind != "features" and not freeze
    spec, plan = choose_settings(sources.kind, backbone, weights, preset, settings, trains)
    body = make_backbone(sources, spec, weights, plan, trains, seed)
    check_settings(sources, body, plan, trains)
    configuration = configuration_of(sources, body, freeze, plan, seed, processes)
    folder = RunFolder(Path(out), configuration)
    try:
        if folder.open():
            with processes.main_first():
                folder.tidy()
            return load(out, place)
        board = open_board(folder.path) if tensorboard and processes.is_main else None
        context = Context(folder, plan, seed, processes, place, progress, board)
        data = configuration["data"] | {"counts": sources.counts().tolist()}
        info = configuration | {"data": data, "software": software()}
        with held_folder(out) if processes.is_main else nullcontext():
            return _fit(sources, body, trains, context, info)
    except (OSError, SafetensorError) as error:
        raise InputError(f"Could not write the run to '{out}': {error}. Is the disk full?") from error


def _fit(
    sources: DomainDataset, backbone: Backbone | None, trains: bool, context: Context, info: dict[str, Any]
) -> Model:
    """[Fine-tune the backbone], extract features, fit an `EnergyAdapter`, validate, save."""
    folder, processes = context.folder, context.processes
    if backbone is not None and trains and context.settings.recipe == "joint":
        model = _joint(_load(sources, backbone, context), backbone, context, info)
    elif backbone is not None and trains:
        with context.part("reading"):
            start, data = copy.deepcopy(backbone), _load(sources, backbone, context)
        with context.part("fine-tuning"):
            classifier, tuned = finetune_members(data, backbone, context, context.settings.finetune)
        processes.wait()
        if processes.is_main:
            tuned_backbone: Any = classifier.backbone.eval().requires_grad_(False)
            model = _on_trained(sources, data, start, tuned_backbone, context, info, tuned)
    elif processes.is_main:
        model = _on_frozen(sources, backbone, context, info)
    if processes.is_main:
        unseen = np.concatenate(validation_rows(sources, context.settings))
        model.network.held_out = held_out_statistics(model, sources.select(unseen), context.progress)
        model.save(folder.path)
        folder.tidy()
    processes.wait()
    return model if processes.is_main else load(folder.path, context.device)


def _load(sources: DomainDataset, backbone: Backbone, context: Context) -> SourceData:
    """Load the samples; the main process fills the cache first."""
    settings, streams = context.settings, context.folder.streams()
    with context.processes.main_first():
        return load_sources(
            sources, backbone, context.device, settings.validation_fraction, settings.augmentation,
            context.progress, streams,
        )  # fmt: skip


def _joint(data: SourceData, backbone: Backbone, context: Context, info: dict[str, Any]) -> Model:
    """The recipe `joint`: Algorithm 1 trains everything, and nothing is chosen."""
    network, scores, cost = train_joint(data, backbone, context)
    settings = context.settings
    adapter = make_estimator(context)
    adapter.start(data.dataset.domain_names, np.array(data.dataset.classes), backbone.dim)
    adapter.set_network(network.eval().requires_grad_(False), settings.adapt())
    network.amplitudes = source_amplitudes(
        data.dataset, training_rows(data.dataset, settings), backbone, context.device
    )
    assert network.backbone is not None  # the averaged one, not the last iterate
    network.feature_statistics = source_statistics(network.backbone, data.samples, data.train)
    info["cost"], info["expected_gain"] = {"joint": cost}, None
    info["metrics"] = scores | {"seconds": context.seconds()}
    tta = "" if settings.tta in (AUTO, NONE) else settings.tta
    return Model(adapter, tta, info)


def _on_trained(
    sources: DomainDataset,
    data: SourceData,
    start: Backbone,
    backbone: Backbone,
    context: Context,
    info: dict[str, Any],
    tuned: dict[str, Any],
) -> Model:
    """An `EnergyAdapter` on the features of the fine-tuned backbone, validated by short cross-fits."""
    settings, labels = context.settings, data.labels.cpu()
    meter = Meter(context.device)
    with context.part("features"):
        feature = encode(backbone, data.samples, slice(0, len(data.dataset))).cpu()
    parts = [Source(feature[rows], labels[rows]) for rows in data.train]
    shifted = None
    if settings.corrupts(sources.kind, len(parts)):
        rows = slice(0, data.train[-1].stop)
        changed = corrupted_features(backbone, data.samples, rows, context.seed).cpu()
        shifted = changed, labels[rows].repeat(len(EXTRA_CORRUPTIONS))
    with context.part("statistics of sources"):
        amplitudes = source_amplitudes(sources, training_rows(sources, settings), backbone, context.device)
        statistics = source_statistics(backbone, data.samples, data.train)
    transforms = tta_candidates(settings, sources, TRAINED_TTA, statistics is not None)
    folds = None
    if settings.crossfit and chooses(settings, transforms) and len(parts) >= MIN_SOURCES:
        single = [*dict.fromkeys(name for names in transforms for name in names.split("+"))]
        folds = crossfit_folds(sources, start, context, single, amplitudes)
    model = fit_adapter(sources, parts, shifted, context, info, folds, transforms if folds else ())
    network = model.network
    network.amplitudes, network.feature_statistics = amplitudes, statistics
    attach(network, backbone, context.device)
    validation = ((n, feature[r], labels[r]) for n, r in zip(data.dataset.domain_names, data.val))
    scores = validation_scores(model, validation)
    info["cost"] = {"finetune": tuned["cost"], "heads": meter.read(), "parts": context.parts}
    info["metrics"] = scores | {"finetune": tuned["scores"], "seconds": context.seconds()}
    return model


def _on_frozen(
    sources: DomainDataset, backbone: Backbone | None, context: Context, info: dict[str, Any]
) -> Model:
    """An `EnergyAdapter` on features as they are: of a frozen backbone, or given."""
    settings, meter = context.settings, Meter(context.device)
    rows = training_rows(sources, settings)
    unseen = validation_rows(sources, settings)
    if backbone is not None:
        backbone = backbone.to(context.device).eval().requires_grad_(False)
        _announce(sources, backbone, context)
    with context.part("statistics of sources"):
        amplitudes = source_amplitudes(sources, rows, backbone, context.device, context.progress)
    frozen = FrozenSources(sources, rows, backbone, context, amplitudes)
    shifted = None
    if backbone is not None and settings.corrupts(sources.kind, len(rows)):
        part = sources.select(np.concatenate(list(rows)))
        changed = extract_corrupted(part, backbone, context.device, context.seed, context.progress)
        shifted = torch.from_numpy(changed), torch.from_numpy(part.labels).repeat(len(EXTRA_CORRUPTIONS))
    transforms = tta_candidates(settings, sources, FROZEN_TTA, False)
    folds = frozen.folds(transforms) if chooses(settings, transforms) else None
    model = fit_adapter(sources, frozen.sources(), shifted, context, info, folds, transforms)
    model.network.amplitudes = amplitudes
    if backbone is not None:
        attach(model.network, backbone, context.device)
    names, feature, label = sources.domain_names, frozen.feature, frozen.label
    scores = validation_scores(model, ((n, feature[r], label[r]) for n, r in zip(names, unseen)))
    info["cost"] = {"heads": meter.read(), "parts": context.parts}
    info["metrics"] = scores | {"seconds": context.seconds()}
    return model


def _announce(sources: DomainDataset, backbone: Backbone, context: Context) -> None:
    """State time and disk of long feature extraction before it starts."""
    if context.progress is False or has_features(sources, backbone, context.device):
        return
    found = estimate(sources, backbone, context.settings, context.device)
    if found.seconds >= LONG_SECONDS:
        announce(f"features: {found}", context.progress)


def keep_features(
    dataset: DomainDataset, backbone: Any, weights: Any, plan: FitSettings, device: str
) -> None:
    """Compute and cache the features of every domain that `fit(freeze=True)` will read."""
    body = make_backbone(dataset, backbone, weights, plan, False, 0)
    if body is not None:
        extract_features(dataset, body, choose_device(device))
