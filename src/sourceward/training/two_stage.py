"""A fit in two stages: fine-tune the backbone as a classifier, then heads and energies on its features.

The energies practise on the very features that the finished model has: those of the averaged backbone,
without augmentation. Stage 2 is an `EnergyAdapter` and runs on the main process.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sourceward._util.cost import Meter
from sourceward._util.errors import InputError, TrainingError
from sourceward._util.storage import RESTART, load_tensors, save_tensors
from sourceward.data.corruptions import EXTRA_CORRUPTIONS
from sourceward.data.features import corrupted_features
from sourceward.data.loading import encode
from sourceward.estimator import EnergyAdapter
from sourceward.model import Model, load
from sourceward.nn.backbones import Backbone
from sourceward.nn.projection import Projected, project_features
from sourceward.settings import AdaptSettings
from sourceward.training.configuration import AUTO
from sourceward.training.finetune import Classifier, FineTuner
from sourceward.training.joint import validate
from sourceward.training.loop import Feed
from sourceward.training.run_folder import LAST
from sourceward.training.stage import Job, Stage
from sourceward.training.task import Prepared
from sourceward.validation.leave_one_domain_out import LENGTHS, ExpectedGain
from sourceward.validation.views import candidate, named, settle_by_validation, source_statistics


class FineTuning(Stage):
    """Stage 1."""

    name = "finetune"

    def __init__(self, prepared: Prepared, backbone: Backbone, job: Job) -> None:
        settings = job.settings.finetune
        super().__init__(job, settings)
        self.select = settings.select
        self.prepared, device = prepared, prepared.labels.device
        classes = len(prepared.dataset.classes)
        network = Classifier(backbone, backbone.dim, self.sources(), classes, settings)
        network.reset_head(torch.Generator().manual_seed(job.seed))
        network.to(device)
        fast = device.type == "cuda"
        if fast and backbone.kind == "image":
            backbone.to(memory_format=torch.channels_last)
        self.learner = FineTuner(network, settings, job.seed, processes=job.processes, bf16=fast)

    def finish(self) -> tuple[Classifier, dict[str, Any]]:
        """The chosen weights, and what to tell of how they came about; a finished stage is loaded."""
        network = self.learner.current
        if self.folder.finetuned.exists():
            state, told = load_tensors(self.folder.finetuned, RESTART)
            network.load_state_dict(state)
            return network.eval(), told
        meter = Meter(self.learner.device)
        self.begin()
        resumed = self.learner.iteration
        self.train()
        cost = meter.read() | {"images_per_second": self.speed.steady(), "resumed_at": resumed}
        if self.best_scores["iteration"] != self.learner.iteration:
            self._keep_last(network)
            network.load_state_dict(self.best)
        told = {"scores": self.best_scores | {"last_iteration": self.learner.iteration}, "cost": cost}
        if self.processes.is_main:
            save_tensors(self.folder.finetuned, network.state_dict(), told)
            self.folder.checkpoint.unlink(missing_ok=True)
        return network.eval(), told

    def _keep_last(self, network: Classifier) -> None:
        if self.processes.is_main:
            save_tensors(
                self.folder.path / f"finetuned-{LAST}",
                network.state_dict(),
                {"iteration": self.learner.iteration},
            )

    def feed(self, batch_size: int) -> Feed:
        data, learner = self.prepared, self.learner
        return data.samples.feed(data.train, data.labels, batch_size, learner.seed, learner.iteration)

    def sources(self) -> int:
        return len(self.prepared.train)

    def parts(self, loss: Tensor) -> dict[str, float]:
        return {"total": loss.item()}

    def note(self, parts: dict[str, float]) -> str:
        val = f" val {100 * self.best_scores['accuracy']:.1f}" if self.best_scores else ""
        return f"loss {parts['total']:.3f}{val}"

    def scores(self, network: Classifier) -> dict[str, Any]:
        per_source = {}
        for name, rows in zip(self.prepared.dataset.domain_names, self.prepared.val):
            if rows.stop > rows.start:
                rows = self.prepared.first(rows)
                feature = encode(network.backbone, self.prepared.samples, rows)
                _check_alive(feature, self.learner.iteration)
                answer = network.head(feature).argmax(1)
                right = (answer == self.prepared.labels[rows]).float().mean()
                per_source[name] = {"accuracy": right.item(), "samples": len(answer)}
        mean = float(np.mean([scores["accuracy"] for scores in per_source.values()]))
        return {"accuracy": mean, "per_source": per_source}


STAGE_2 = "heads"
"""Of stage 2."""

Pretend = Callable[[EnergyAdapter, str], tuple[AdaptSettings, ExpectedGain, ExpectedGain | None]]
"""Tunes a fitted estimator and tries views on pretend targets that its backbone did not see: `crossfit`."""


def finish_two_stage(
    prepared: Prepared,
    backbone: Backbone,
    job: Job,
    info: dict[str, Any],
    pretend: Pretend | None = None,
) -> Model:
    """Both stages, and the model folder."""
    folder, processes = job.folder, job.processes
    classifier, told = FineTuning(prepared, backbone, job).finish()
    processes.wait()
    if processes.is_main:
        model = fit_heads(prepared, classifier.backbone, job, info, told, pretend)
        model.save(folder.path)
        folder.tidy()
    processes.wait()
    return model if processes.is_main else load(folder.path, prepared.labels.device)


def fit_heads(
    prepared: Prepared,
    backbone: nn.Module,
    job: Job,
    info: dict[str, Any],
    told: dict[str, Any],
    pretend: Pretend | None = None,
) -> Model:
    """Stage 2: features of the finished backbone, in memory only; an `EnergyAdapter` on their components."""
    data, device, settings = prepared.dataset, prepared.labels.device, job.settings
    meter = Meter(device)
    job.folder.rewind(STAGE_2, -1, "validation")
    backbone.eval().requires_grad_(False)
    feature = encode(backbone, prepared.samples, slice(0, len(data))).cpu()
    rows = slice(0, prepared.train[-1].stop)
    still, feature = project_features(backbone, feature, rows, settings.components)
    arrays = feature[rows].numpy(), data.labels[rows], data.domains[rows]
    shifted = _shifted(prepared, backbone, still, rows, job)
    tuned = {} if pretend is None else {"num_steps": LENGTHS[0]}
    estimator = _fit_estimator(*arrays, *shifted, device, job, tuned)
    adapt, expected_gain = estimator._test_time(), estimator.expected_gain_
    feature_statistics = source_statistics(backbone, prepared.samples, prepared.train)
    views, of_views = candidate(settings, backbone, feature_statistics, prepared), None
    if pretend is not None:
        adapt, expected_gain, of_views = pretend(estimator, views)
    elif expected_gain is not None:
        gains = {data.domain_names[int(code)]: gain for code, gain in expected_gain.per_source.items()}
        expected_gain = replace(expected_gain, per_source=gains, seen=True)
    info["expected_gain"] = None if expected_gain is None else expected_gain.to_dict()
    classes = tuple(data.classes[code] for code in estimator.classes_)
    model = Model(estimator.network_, classes, data.domain_names, adapt, info)
    known = torch.full((len(data.classes),), -1)
    known[torch.from_numpy(estimator.classes_)] = torch.arange(len(classes))
    scores = _validate(model, feature.to(device), prepared, known)
    done = estimator.n_iter_
    job.record(STAGE_2, done, {"validation": scores})
    info["cost"] = {"finetune": told["cost"], "heads": meter.read()}
    seconds = round(sum(cost["seconds"] for cost in info["cost"].values()), 2)
    own = {"iteration": done, "last_iteration": done, "seconds": seconds}
    info["metrics"] = {**scores, **own, "finetune": told["scores"]}
    assert still is not None
    network = model.network
    network.backbone, network.amplitudes, network.feature_statistics = (
        still.to(device),
        job.styles,
        feature_statistics,
    )
    network.eval().requires_grad_(False)
    if of_views is not None:
        info["tta_gain"] = named(of_views, views)
        model.views = views if of_views.adapts or settings.views != AUTO else ""
    elif views and settings.views == AUTO:
        imagines = not settings.corrupts(data.kind, len(data.domain_names))
        model.views, info["tta_gain"] = settle_by_validation(model, prepared, known, views, imagines)
    else:
        model.views = views
    return model


def _shifted(
    prepared: Prepared, backbone: nn.Module, still: nn.Module | None, rows: slice, job: Job
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Features and labels of corrupted copies, where a lone source practises on those."""
    data = prepared.dataset
    if not job.settings.corrupts(data.kind, len(data.domain_names)):
        return None, None
    feature = corrupted_features(backbone, prepared.samples, rows, job.seed).cpu()
    feature = still.project(feature) if isinstance(still, Projected) else feature
    return feature.numpy(), np.tile(data.labels[rows], len(EXTRA_CORRUPTIONS))


def _fit_estimator(
    X: np.ndarray,
    y: np.ndarray,
    domain: np.ndarray,
    X_shifted: np.ndarray | None,
    y_shifted: np.ndarray | None,
    device: torch.device,
    job: Job,
    changes: dict[str, Any],
) -> EnergyAdapter:
    checkpoint = job.folder.heads
    estimator = EnergyAdapter(
        **job.settings.estimator() | changes,
        allow_missing=True,  # refused before anything was trained, where it is not allowed
        checkpoint=checkpoint,
        device=job.settings.heads_device or str(device),
        random_state=job.seed,
        verbose=job.progress,
    )
    estimator._log = _Log(job)
    shifted = {"X_shifted": X_shifted, "y_shifted": y_shifted}
    try:
        estimator.fit(X, y, sample_domain=domain, **shifted)
    except InputError:
        if not checkpoint.exists():
            raise
        checkpoint.unlink()  # damaged, or of features with other bits: begin the stage again
        estimator.fit(X, y, sample_domain=domain, **shifted)
    estimator.network_.to(device)
    return estimator


class _Log:
    """Writes down how stage 2 trains."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def start(self, iteration: int) -> None:
        self.job.folder.rewind(STAGE_2, iteration)

    def write(self, iteration: int, line: dict[str, Any]) -> None:
        self.job.record(STAGE_2, iteration, line)


def _validate(model: Model, feature: Tensor, prepared: Prepared, known: Tensor) -> dict[str, Any]:
    """Source validation of the finished model; a class that no source trained on is never right."""
    label = known.to(feature.device)[prepared.labels]
    network = model.network
    parts = (
        (name, network.features(feature[rows]), label[rows])
        for name, rows in zip(prepared.dataset.domain_names, prepared.val)
    )
    with torch.no_grad():
        return validate(parts, network, model.settings)


def _check_alive(feature: Tensor, iteration: int) -> None:
    spread = feature.std(0).max().item() if len(feature) > 1 else 1.0
    if not spread > 0:  # NaN, too
        raise TrainingError(
            f"Every sample has the same features at iteration {iteration} of fine-tuning: they collapsed. "
            "Lower `finetune.backbone_rate`, or pass --freeze."
        )
