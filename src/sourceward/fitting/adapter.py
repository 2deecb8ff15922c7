"""The `EnergyAdapter` of a fit: trained, validated, and joined with its backbone."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import CheckpointError
from sourceward.data import DomainDataset
from sourceward.estimator import EnergyAdapter
from sourceward.model import Model
from sourceward.nn import Projected
from sourceward.nn.backbones import Backbone
from sourceward.settings import AUTO
from sourceward.training.configuration import NONE, FitSettings
from sourceward.training.joint import score_domains
from sourceward.training.run_folder import Context
from sourceward.validation.folds import Fold, Source


def fit_adapter(
    sources: DomainDataset,
    parts: Sequence[Source],
    shifted: tuple[Tensor, Tensor] | None,
    context: Context,
    info: dict[str, Any],
    folds: Any,
    transforms: Sequence[str],
) -> Model:
    """Fit and validate the estimator; the model without its backbone."""
    settings, checkpoint = context.settings, context.folder.heads
    known = torch.cat([part.label for part in parts]).unique()  # a class may have no training sample
    number = torch.full((len(sources.classes),), -1).scatter(0, known, torch.arange(len(known)))
    parts = [part._replace(label=number[part.label]) for part in parts]
    if shifted is not None:
        shifted = shifted[0], number[shifted[1]]
    drawn = list[float]()
    folds = None if folds is None else _drawn((_renumbered(f, number) for f in folds), context, drawn)
    classes = np.array([sources.classes[code] for code in known.tolist()])
    adapter = make_estimator(context, checkpoint)
    if folds is None:  # nothing to validate on
        folds = iter(())

    def train() -> None:
        adapter.fit_sources(
            parts,
            sources.domain_names,
            classes,
            shifted,
            folds=folds,
            tta=transforms,
            kept_gain=settings.kept_gain,
            log=context.log("heads"),
        )

    begin = time.monotonic()
    try:
        train()
    except CheckpointError as error:
        if error.path != checkpoint:
            raise
        checkpoint.unlink()  # this training is short; no fold has been drawn yet
        train()
    first, last = (drawn[0], drawn[-1]) if drawn else (time.monotonic(), time.monotonic())
    context.parts["heads and energies"] = round(first - begin, 2)
    context.parts["validation"] = round(time.monotonic() - last, 2)
    tta = adapter.tta_ if settings.tta == AUTO else ("" if settings.tta == NONE else settings.tta)
    gain = adapter.expected_gain_
    info["expected_gain"] = None if gain is None else gain.to_dict()
    return Model(adapter, tta, info)


def _drawn(folds: Iterator[Fold], context: Context, times: list[float]) -> Iterator[Fold]:
    """The folds, noting when the first was wanted and the last was ready; their features are a part."""
    times.append(time.monotonic())
    while True:
        with context.part("features of held-out sources"):
            fold = next(folds, None)
        times.append(time.monotonic())
        if fold is None:
            return
        yield fold


def _renumbered(fold: Fold, number: Tensor) -> Fold:
    train = [source._replace(label=number[source.label]) for source in fold.train]
    return fold._replace(train=train, label=number[fold.label])


def make_estimator(context: Context, checkpoint: Path | None = None) -> EnergyAdapter:
    settings: FitSettings = context.settings
    return EnergyAdapter(
        **settings.estimator(),
        checkpoint=checkpoint,
        device=settings.heads_device or str(context.device),
        random_state=context.seed,
        verbose=context.progress,
    )


def attach(network: Any, backbone: Backbone, device: torch.device) -> None:
    """Put the backbone before the network's projection."""
    projection = network.backbone
    if isinstance(projection, Projected):
        network.backbone = Projected(backbone, projection.projection)
    else:
        network.backbone = backbone
    network.to(device).eval().requires_grad_(False)


def validation_scores(model: Model, parts: Any) -> dict[str, Any]:
    """Accuracy of the finished heads on source validation, with and without Langevin steps."""
    adapter, device = model.adapter, model.device
    number = {name: place for place, name in enumerate(model.classes)}
    codes = model.info["data"]["classes"]
    place = torch.tensor([number.get(name, -1) for name in codes])
    scaled = ((n, adapter.rescale(x), place[y].to(device)) for n, x, y in parts)
    with torch.no_grad():
        scores = score_domains(model.network, scaled, model.settings)
    return scores | {"iteration": adapter.n_iter_, "last_iteration": adapter.n_iter_}
