"""The deployed procedure on features: principal components, whitening, heads and energies, calibration.

`EnergyAdapter.fit` runs it once on all sources, and leave-one-domain-out validation once without each.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.devices import choose_device, without_autocast
from sourceward._util.threads import threads_for
from sourceward.data.feeds import ResidentFeed
from sourceward.estimator.input import fingerprint_of, held_out
from sourceward.functional import principal_components, within_and_between_covariance
from sourceward.nn import Network, Projected
from sourceward.samplers import StepSettings
from sourceward.settings import LoopSettings, TrainSettings
from sourceward.training.distillation import distil
from sourceward.training.loop import Log, Training
from sourceward.training.trainer import Trainer
from sourceward.validation.folds import Source

if TYPE_CHECKING:
    from sourceward.estimator.estimator import EnergyAdapter

from typing import TYPE_CHECKING

from sklearn.base import clone

from sourceward.settings import AUTO, AdaptSettings
from sourceward.validation.folds import Fold
from sourceward.validation.leave_one_domain_out import Choice, validate

if TYPE_CHECKING:
    from sourceward.estimator.estimator import EnergyAdapter


Part = tuple[Tensor, Tensor]
"""Features and labels of one source."""


def fit_network(
    estimator: "EnergyAdapter",
    sources: Sequence[Source],
    shifted: Part | None = None,
    *,
    checkpoint: str | Path | None = None,
    log: Log | None = None,
) -> Network:
    """Train a network, its energies calibrated on samples that it was not trained on.

    Args:
        estimator: whose settings, classes and seed are used.
        sources: features and class numbers of each.
        shifted: features and class numbers that belong to no source.
        checkpoint: see `Training`.
        log: see `Training`.
    """
    device, settings = choose_device(estimator.device), TrainSettings.of(estimator.train)
    dim = sources[0].feature.shape[1]
    with threads_for(min(dim, settings.components or dim)):
        return _fit_network(estimator, sources, shifted, device, settings, checkpoint, log)


def _fit_network(
    estimator: "EnergyAdapter",
    sources: Sequence[Source],
    shifted: Part | None,
    device: torch.device,
    settings: TrainSettings,
    checkpoint: str | Path | None,
    log: Log | None,
) -> Network:
    projection, sources, shifted = _projected(sources, shifted, settings.components)
    sources = [source.to(device) for source in sources]
    shifted = None if shifted is None else (shifted[0].to(device), shifted[1].to(device))
    held = [held_out(source.label) for source in sources]
    trained = [source.rows(~mask) for source, mask in zip(sources, held)]
    network = _train(estimator, trained, shifted, settings, checkpoint, log)
    unseen = [
        (source.feature[mask], source.label[mask]) if mask.any() else (source.feature, source.label)
        for source, mask in zip(sources, held)
    ]
    for number, (x, _) in enumerate(unseen):
        network.fit_calibration(number, network.features(x))
    rows, label = (torch.cat(values) for values in zip(*unseen))
    network.fit_lda(network.features(rows), label)
    network.requires_grad_(False)
    if estimator.sampler == "distilled":
        feature = network.features(torch.cat([x for x, _ in trained]))
        step = StepSettings(estimator.step_size, estimator.noise_std)
        iterations, seed = estimator.max_iter, estimator._seed
        network.distilled = distil(network, feature, step, settings.distilled_steps, iterations, seed)
    if projection is not None:
        network.backbone = Projected(None, projection.to(device))
    return network


def _projected(
    sources: Sequence[Source], shifted: Part | None, components: int | None
) -> tuple[Tensor | None, list[Source], Part | None]:
    """The principal components of wide features, and everything projected onto them."""
    dim = sources[0].feature.shape[1]
    if components is None or dim <= components:
        return None, list(sources), shifted
    projection = principal_components(torch.cat([source.feature for source in sources]).cpu(), components)
    module = Projected(None, projection.to(sources[0].feature.device))
    found = [
        source._replace(
            feature=module.project(source.feature),
            copy=None if source.copy is None else module.project(source.copy),
        )
        for source in sources
    ]
    return projection, found, None if shifted is None else (module.project(shifted[0]), shifted[1])


def _train(
    estimator: "EnergyAdapter",
    parts: Sequence[Part],
    shifted: Part | None,
    settings: TrainSettings,
    checkpoint: str | Path | None,
    log: Log | None,
) -> Network:
    device, seed, size = parts[0][0].device, estimator._seed, estimator.batch_size
    network = Network(len(parts), len(estimator.classes_), parts[0][0].shape[1], estimator.head).to(device)
    network.reset_parameters(torch.Generator().manual_seed(seed))
    network.fit_scale(
        torch.cat([x for x, _ in parts]), within_and_between_covariance(parts) if estimator.whiten else None
    )
    for source, (x, y) in enumerate(parts):
        network.fit_centers(source, network.features(x), y)
    network.fill_centers()
    loop = LoopSettings(
        estimator.max_iter,
        size,
        estimator.learning_rate,
        estimator.energy_learning_rate,
        weight_decay=settings.weight_decay,
        optimizer=settings.optimizer,
        schedule=settings.schedule,
        average=settings.average,
    )
    fingerprint = ""
    if checkpoint is not None:
        own = (estimator.head, estimator.whiten, estimator.kl_weight, device, loop, settings, seed)
        fingerprint = fingerprint_of(parts, shifted, own)
    feed = ResidentFeed([x for x, _ in parts], [y for _, y in parts], size, shifted)
    return Training(
        Trainer(network, loop, settings, estimator.kl_weight, seed),
        lambda start: feed,
        size * len(parts),
        name="fitting",
        checkpoint=checkpoint,
        fingerprint=fingerprint,
        log=log,
        progress=estimator.verbose,
    ).run()


@torch.no_grad()
@without_autocast()
def rescaled(network: Network, X: Any) -> Tensor:
    """Features as a network takes them: projected, whitened and scaled, on its device."""
    raw = torch.as_tensor(np.require(X, np.float32, "W")).to(network.scale.device)
    if isinstance(network.backbone, Projected):
        raw = network.backbone.project(raw)
    return network.rescale(raw)


def choose_adaptation(
    estimator: "EnergyAdapter",
    folds: Sequence[Fold],
    settings: AdaptSettings,
    shifted: Part | None,
    tta: Sequence[str],
    kept_gain: float,
) -> Choice:
    """What validation chooses for an estimator; it is not changed."""
    twin = clone(estimator).set_params(verbose=False, checkpoint=None)
    twin.classes_, twin._seed = estimator.classes_, estimator._seed
    return validate(
        folds,
        lambda some: fit_network(twin, some, shifted),
        settings,
        choose_steps=estimator.num_steps == AUTO,
        tta=tta,
        kept_gain=kept_gain,
        progress=estimator.verbose,
    )
