"""From a dataset to a model folder.

    fit("photos/", out="run", target="sketch")                    trains the backbone with Algorithm 1
    fit("photos/", out="run", target="sketch", freeze=True)       trains heads and energies on its features
    fit("features.npz", out="run")                                needs no backbone

Run the same call again after a kill, and it goes on to the same bits; after the end, and it loads the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sourceward.data import DomainDataset, open_dataset
from sourceward.data.diagnosis import BROKEN, refuse
from sourceward.errors import InputError
from sourceward.fit_settings import FitSettings, settings_for
from sourceward.inputs import Samples, encode, extract_features, prepare_samples, tensor_hash
from sourceward.model import Model, load
from sourceward.nn import Network
from sourceward.nn.backbones import Backbone, ImagePreprocessing, create_backbone
from sourceward.nn.projection import Projected, principal_components
from sourceward.parallel import Processes, join_processes
from sourceward.presets import PRESETS
from sourceward.runs import Run, RunFolder, software
from sourceward.train import Trainer

LOOK = 4096
"""Samples of a source that scale, class centres and validation look at while a backbone trains; the class
centres of the finished model come from all of them."""


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
        data: anything `open_dataset` takes.
        out: the run's folder; an unfinished run of the same configuration goes on, a finished one is loaded.
        target: domains to leave out; those that the dataset's owners hold out when none are named.
        backbone: see `create_backbone`; that of the preset, or `timm:resnet18` and
            `hf:distilbert-base-uncased`, when None. Features need none.
        weights: see `create_backbone`.
        freeze: never train the backbone; its features are computed once and kept on disk.
        preset: a name in `PRESETS`, whose settings come before `settings`.
        settings: whole, or only what differs from the defaults.
        device: `cpu`, `cuda` or `auto`.
        seed: of everything random.
        allow_missing: accept a class that a source has no samples of.
        tensorboard: write metrics for TensorBoard, too.
        progress: show bars; when standard error is a terminal if None.
    """
    processes, place = join_processes(device)
    sources = _sources(open_dataset(data), target, allow_missing)
    chosen = PRESETS[preset] if preset is not None else None
    trains = sources.kind != "features" and not freeze
    if isinstance(settings, FitSettings):
        plan = settings
    else:
        plan = settings_for(trains, chosen.settings if chosen and trains else None, settings)
    body = _backbone(sources, backbone or (chosen and chosen.backbone), weights, plan, trains, seed)
    configuration = _configuration(sources, body, freeze, plan, seed, processes)
    folder = RunFolder(Path(out), configuration)
    try:
        if folder.open():
            return load(out, place)
        task = _task(sources, body, plan, freeze, processes, place, progress)
        run = Run(task, folder, plan, seed, processes, progress, tensorboard)
        return run.finish(configuration | {"software": software()})
    except (OSError, SafetensorError) as error:
        raise InputError(f"Could not write the run to '{out}': {error}. Is the disk full?") from error


@dataclass
class Task:
    """What is trained on what: a network, samples on their way to it, and which rows serve what."""

    network: Network
    samples: Samples
    dataset: DomainDataset
    labels: Tensor
    train: list[slice]
    val: list[slice]
    still: nn.Module | None
    """What comes before the network and is not trained; it joins it in the finished model."""
    look: int | None
    """Rows of a source to look at during training; all when None."""

    @property
    def bf16(self) -> bool:
        return self.network.backbone is not None and self.labels.device.type == "cuda"

    def features(self, network: Network, rows: slice, everything: bool = False) -> tuple[Tensor, Tensor]:
        """Rescaled features and labels."""
        if not everything and self.look is not None:
            rows = slice(rows.start, min(rows.stop, rows.start + self.look))
        return encode(network.features, self.samples, rows), self.labels[rows]

    def fit_centers(self, network: Network, everything: bool = False) -> None:
        """Class centres of every source under this network."""
        network.centers.zero_()
        for source, rows in enumerate(self.train):
            network.fit_centers(source, *self.features(network, rows, everything))
        network.fill_centers()

    def fit_scale(self) -> None:
        """Centre and scale of the source features, before any training."""
        self.network.eval()
        self.network.fit_scale(torch.cat([self.features(self.network, rows)[0] for rows in self.train]))


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
    crop = settings.crop_fraction
    if isinstance(backbone.preprocessing, ImagePreprocessing) and crop is not None:
        backbone.preprocessing = replace(backbone.preprocessing, crop_fraction=crop)
    return backbone.freeze_batchnorm(settings.freeze_batchnorm or not trains)


def _task(
    sources: DomainDataset,
    backbone: Backbone | None,
    settings: FitSettings,
    freeze: bool,
    processes: Processes,
    device: torch.device,
    progress: bool | None,
) -> Task:
    trained = None if freeze else backbone
    with processes.main_first():
        if backbone is not None and freeze:
            sources = extract_features(sources, backbone, device, progress)
        dataset, train, val = arrange(sources, settings.validation_fraction)
        still: nn.Module | None = backbone if freeze else None
        if trained is None:
            dataset, still = _project(dataset, slice(0, train[-1].stop), still, settings.components)
        samples = prepare_samples(dataset, trained, device, settings.augmentation, progress)
    dim = trained.dim if trained is not None else dataset.items.shape[1]
    network = Network(len(train), len(dataset.classes), dim, settings.head, trained).to(device)
    if device.type == "cuda" and trained is not None and trained.kind == "image":
        trained.to(memory_format=torch.channels_last)
    labels = torch.from_numpy(dataset.labels).to(device)
    return Task(network, samples, dataset, labels, train, val, still, None if trained is None else LOOK)


def _project(
    dataset: DomainDataset, train: slice, backbone: nn.Module | None, dim: int | None
) -> tuple[DomainDataset, nn.Module | None]:
    """Features on the principal components of those trained on, and what makes them out of new inputs."""
    feature = torch.from_numpy(dataset.items)
    if dim is None or feature.shape[1] <= dim:
        return dataset, backbone
    projected = Projected(backbone, principal_components(feature[train], dim))
    return replace(dataset, items=projected.project(feature).numpy()), projected


def arrange(sources: DomainDataset, fraction: float = 0.1) -> tuple[DomainDataset, list[slice], list[slice]]:
    """The samples in the order: rows to train on of each source, then rows to select on of each source.

    Within a part they are shuffled, so that the first few stand for all.
    """
    parts = []
    for rows in sources.train_val_indices(fraction):
        rows = rows[np.random.default_rng(0).permutation(len(rows))]
        parts += [rows[sources.domains[rows] == code] for code in range(len(sources.domain_names))]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    slices = [slice(end - len(part), end) for part, end in zip(parts, ends)]
    half = len(sources.domain_names)
    return sources.select(np.concatenate(parts)), slices[:half], slices[half:]


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


__all__ = ["FitSettings", "Task", "Trainer", "fit"]
