"""One run of Algorithm 1: train, look at source validation, keep the best, end as a model folder."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.cost import Meter
from sourceward._util.storage import save_tensors
from sourceward.adaptation import EnergyAdaptation
from sourceward.adaptation.base import AdaptationResult
from sourceward.data.loading import Resident
from sourceward.data.transforms import STYLE
from sourceward.estimator import EnergyAdapter, ExpectedGain
from sourceward.functional import Loss
from sourceward.model import Model
from sourceward.nn import DistilledStep, Network
from sourceward.settings import AdaptSettings
from sourceward.training.configuration import AUTO, NONE, FitSettings
from sourceward.training.distillation import distil
from sourceward.training.loop import Feed, Trainer
from sourceward.training.monitor import note_of, parts_of
from sourceward.training.run_folder import LAST
from sourceward.training.stage import Job, Stage
from sourceward.training.styles import directions
from sourceward.training.task import Task
from sourceward.validation.leave_one_domain_out import Part, settle_views, try_views
from sourceward.validation.views import named


class Run(Stage):
    """Algorithm 1 as a stage: backbone (where one is trained), heads and energies together."""

    select_on = "adapted"
    settings: FitSettings
    tta_gain: ExpectedGain | None = None
    """What pretend targets gained by being asked about in the style of another source, too."""

    def __init__(self, task: Task, job: Job) -> None:
        super().__init__(job, job.settings)
        self.task = task
        self.meter = Meter(task.labels.device)
        self.learner = self._trainer(job.seed)

    def finish(self, info: dict[str, Any]) -> Model:
        """Train to the end and write the model folder."""
        self.begin()
        self.train()
        task, learner, network = self.task, self.learner, self.learner.current
        last = {k: v.cpu().clone() for k, v in self._complete(network).state_dict().items()}
        if self.best_scores["iteration"] != learner.iteration:
            network.distilled = None
            network.load_state_dict(self.best)
            self._complete(network)
        cost = self.meter.read()
        info["metrics"] = self.best_scores | {"last_iteration": learner.iteration}
        info["cost"] = {self.name: cost | {"per_second": self.speed.steady()}}
        network.eval().requires_grad_(False)
        data = task.dataset
        adapt, expected_gain = self._tuned()
        if adapt != self.settings.adapt().untaught():
            info["metrics"] |= self._scores(network, adapt)
        info["metrics"]["seconds"] = self.job.seconds()
        network.amplitudes = self.job.styles
        network.backbone = network.backbone or task.still  # not before: the samples are its features already
        network.eval().requires_grad_(False).to(task.labels.device)
        info["expected_gain"] = None if expected_gain is None else expected_gain.to_dict()
        views = "" if self.settings.views in (AUTO, NONE) else self.settings.views
        if self.tta_gain is not None:
            info["tta_gain"] = named(self.tta_gain, STYLE)
            views = STYLE if self.tta_gain.adapts else ""
        model = Model(network, data.classes, data.domain_names, adapt, info, views)
        if self.processes.is_main:
            if self.best_scores["iteration"] != learner.iteration:
                extra = {} if task.still is None else task.still.state_dict(prefix="backbone.")
                extra |= {} if network.amplitudes is None else {"amplitudes": network.amplitudes}
                save_tensors(self.folder.path / LAST, last | extra, {"iteration": learner.iteration})
            model.save(self.folder.path)
            self.folder.tidy()
        self.processes.wait()
        return model

    def _trainer(self, seed: int) -> Trainer:
        task, settings = self.task, self.settings
        task.network.reset_parameters(torch.Generator().manual_seed(seed))
        task.fit_scale(settings.whiten)
        task.fit_centers(task.network)
        parts = settings.train(self.processes.count)
        options = {"processes": self.processes, "bf16": task.bf16, "compile": settings.finetune.compile}
        return Trainer(task.network, settings.loop(), parts, seed, **options)  # type: ignore[arg-type]

    def feed(self, batch_size: int) -> Feed:
        task, learner = self.task, self.learner
        return task.samples.feed(task.train, task.labels, batch_size, learner.seed, learner.iteration)

    def sources(self) -> int:
        return len(self.task.train)

    def parts(self, loss: Loss) -> dict[str, float]:
        return parts_of(loss)

    def note(self, parts: dict[str, float]) -> str:
        scores = self.best_scores
        val = f" val {100 * scores['unadapted']:.1f} -> {100 * scores['adapted']:.1f}" if scores else ""
        return f"{note_of(parts)}{val}"

    def scores(self, network: Network) -> dict[str, Any]:
        self.task.fit_centers(network)
        self._calibrate(network)
        return self._scores(network, self.settings.adapt().untaught())

    def _scores(self, network: Network, adapt: AdaptSettings) -> dict[str, Any]:
        task = self.task
        parts = ((n, *task.features(network, r)) for n, r in zip(task.dataset.domain_names, task.val))
        return validate(parts, network, adapt)

    def _tuned(self) -> tuple[AdaptSettings, ExpectedGain | None]:
        """What pretend targets ask for; with a backbone that saw them all there is none to ask."""
        task, settings = self.task, self.settings
        asks = settings.num_steps == "auto" or settings.aggregation == "learned"
        if not asks or not isinstance(task.samples, Resident) or task.look is not None:
            return settings.adapt(), None
        parts = [(task.samples.rows[rows], task.labels[rows]) for rows in task.plain]
        names, classes = list(task.dataset.domain_names), np.arange(len(task.dataset.classes))
        estimator = EnergyAdapter(
            **settings.estimator(), device=str(task.labels.device), random_state=self.job.seed
        )
        rows, labels, count = task.samples.rows, task.labels, len(task.train)
        trials = []

        def teaches(held: int, source: int) -> Part:
            """The samples as they came, and copies that go to none but the sources that are left."""
            own, plain = task.train[source], task.plain[source]
            toward = directions(source, slice(plain.stop, own.stop), count)
            copies = plain.stop + np.flatnonzero(toward != held)
            number = np.concatenate([np.arange(plain.start, plain.stop), copies])
            return rows[number], labels[number]

        def watch(held: int, network: Network) -> None:
            if task.pictures:
                own = task.pictures[held]
                there = slice(task.plain[held].start, task.plain[held].start + len(own[0]))
                voices = [[network.features(x) for x in of] for of in ([rows[there]], own)]
                trials.append(try_views(names[held], network, voices, labels[there]))

        shifted = task.samples.shifted
        adapt, expected_gain = estimator.self_tune(parts, names, classes, shifted, watch, teaches)
        self.tta_gain = settle_views(trials) if trials else None
        return adapt, expected_gain

    def _complete(self, network: Network) -> Network:
        """Class centres of the finished network, from every training sample; energies on the scale of those
        that were held out."""
        if self.task.look is not None:
            self.task.fit_centers(network.eval(), everything=True)
        self._calibrate(network)
        if self.settings.sampler == "distilled":
            network.distilled = self._leap(network.eval())
        return network

    def _leap(self, network: Network) -> DistilledStep:
        settings = self.settings
        feature = torch.cat([self.task.features(network, rows)[0] for rows in self.task.train]).float()
        step = settings.adapt().step
        return distil(network, feature, step, settings.distilled_steps, settings.max_iter, self.job.seed)

    def _calibrate(self, network: Network) -> None:
        rows = [val if val.stop > val.start else train for train, val in zip(self.task.train, self.task.val)]
        parts = [self.task.features(network, part) for part in rows]
        for source, (feature, _) in enumerate(parts):
            network.fit_calibration(source, feature)
        network.fit_lda(*(torch.cat(values) for values in zip(*parts)))


def validate(
    parts: Iterable[tuple[str, Tensor, Tensor]], network: Network, settings: AdaptSettings
) -> dict[str, Any]:
    """Accuracy on (source, features, labels), with and without adaptation; the mean is over sources."""
    per_source = {}
    for name, feature, label in parts:
        if len(label):
            truth = label.cpu().numpy()

            def score(adapted: AdaptationResult, truth: Any = truth) -> float:
                return float((adapted.probabilities.argmax(1) == truth).mean())

            per_source[name] = {
                "unadapted": score(EnergyAdaptation(settings.off())(network, feature)),
                "adapted": score(EnergyAdaptation(settings)(network, feature)),
                "samples": len(label),
            }
    means = {
        key: sum(scores[key] for scores in per_source.values()) / len(per_source)
        for key in ("unadapted", "adapted")
    }
    return {**means, "per_source": per_source}
