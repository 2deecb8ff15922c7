"""One training of a run: the loop, the looks at source validation, and what survives a kill."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sourceward._util.devices import Processes
from sourceward._util.progress import Advance, progress_bar
from sourceward._util.storage import RESTART, load_tensors, save_tensors
from sourceward.training.configuration import FitSettings
from sourceward.training.learner import CHECK_EVERY, Learner
from sourceward.training.loop import Feed, ResidentFeed
from sourceward.training.monitor import Speed
from sourceward.training.run_folder import RunFolder
from sourceward.training.selection import takes_over

LOCAL = ("generator", "replay.")
"""State that every process has of its own."""


@dataclass(frozen=True)
class Job:
    """Where, how, by whom: what every stage of a run is told."""

    folder: RunFolder
    settings: FitSettings
    seed: int
    processes: Processes
    progress: bool | None = None
    board: Any = None
    """TensorBoard's writer."""
    styles: Tensor | None = None
    """Of the sources' images, for the finished network."""
    started: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Since the run was started or taken up again, preparations and all."""
        return round(time.monotonic() - self.started, 2)

    def record(self, stage: str, iteration: int, line: dict[str, Any]) -> None:
        """Write down a `loss` or a `validation`."""
        if not self.processes.is_main:
            return
        self.folder.record({"stage": stage, "iteration": iteration, **line})
        for name, value in (line.get("loss") or line.get("validation") or {}).items():
            if self.board is not None and isinstance(value, float):
                kind = "loss" if "loss" in line else "validation"
                self.board.add_scalar(f"{stage}/{kind}/{name}", value, iteration)


class Stage:
    """One training in a run's folder, from wherever it stands to its end.

    A subclass makes the learner and the batches, says what a loss is made of and how good the weights are;
    logs, selection, checkpoints and their restoration are here.
    """

    name = "training"
    select, select_on = "best", "accuracy"
    """The rule by which weights are kept, and the score that it looks at; see `selection`."""
    learner: Learner

    def __init__(self, job: Job, settings: Any) -> None:
        """`settings` has `max_iter`, `batch_size`, `evaluate_every` and `checkpoint_every`."""
        self.job, self.folder, self.processes, self.settings = job, job.folder, job.processes, settings
        self.best: dict[str, Tensor] = {}
        self.best_scores: dict[str, Any] = {}
        self.show = job.progress if self.processes.is_main else False
        self.every = settings.evaluate_every or max(1, settings.max_iter // 10)
        self.speed = Speed()

    def feed(self, batch_size: int) -> Feed:
        """Batches from the learner's iteration on, `batch_size` rows of each source."""
        raise NotImplementedError

    def parts(self, loss: Any) -> dict[str, float]:
        """What the log says of a loss; `total` is the whole."""
        raise NotImplementedError

    def note(self, parts: dict[str, float]) -> str:
        """What the progress bar says of it."""
        raise NotImplementedError

    def scores(self, network: Any) -> dict[str, Any]:
        """On source validation, `select_on` among them."""
        raise NotImplementedError

    def train(self) -> None:
        """From the learner's iteration to the end, in a random state of its own."""
        outer = torch.get_rng_state()  # dropout inside backbones draws from the global generator
        cudnn = torch.backends.cudnn
        before, cudnn.deterministic = cudnn.deterministic, True  # a resumed run ends with the same bits
        try:
            self._loop()
        finally:
            cudnn.deterministic = before
            torch.set_rng_state(outer)

    def _loop(self) -> None:
        learner, total = self.learner, self.settings.max_iter
        size = max(1, self.settings.batch_size // self.processes.count)
        feed = self.feed(size)
        self.streams = not isinstance(feed, ResidentFeed)
        sources = self.sources()
        self.speed.start(learner.iteration, size * sources * self.processes.count)
        learner.network.train()
        with progress_bar(total, self.name, self.show) as advance:
            while learner.iteration < total:
                loss = learner.step(feed)  # type: ignore[attr-defined]
                done = learner.iteration
                if done % CHECK_EVERY == 0 or done == total:
                    self._log(loss, advance)
                if done % self.every == 0 or done == total:
                    self._validate()
                if done % self.settings.checkpoint_every == 0 and done < total:
                    self._save()
                    self.speed.pause(done)

    def sources(self) -> int:
        raise NotImplementedError

    def _log(self, loss: Any, advance: Advance) -> None:
        parts = self.parts(loss)  # waits for the device
        speed = self.speed.lap(self.learner.iteration)
        advance(self.learner.iteration, f"{self.note(parts)} {speed:,.0f}/s")
        self._record({"loss": parts, "per_second": round(speed, 1)})

    def _validate(self) -> None:
        """Look at source validation, and keep what the rule wants kept."""
        network = self.learner.current.eval()
        scores = self.scores(network)
        scores["iteration"] = self.learner.iteration
        if takes_over(scores, self.best_scores, self.select, self.select_on):
            self.best_scores = scores
            self.best = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
        self.learner.network.train()
        self._record({"validation": scores})
        self.speed.pause(self.learner.iteration)

    def _record(self, line: dict[str, Any]) -> None:
        self.job.record(self.name, self.learner.iteration, line)

    def begin(self) -> None:
        """Go on from the checkpoint where there is one, and forget what was recorded after it."""
        if self.folder.checkpoint.exists():
            self._restore()
        if self.processes.is_main:
            self.folder.start()
            self.folder.rewind(self.name, self.learner.iteration)

    def _save(self) -> None:
        state = self.learner.state_dict()
        for name in [name for name in state if name.startswith(LOCAL)]:
            state[name] = self.processes.gather(state[name], self.learner.device)
        state |= {f"best.{name}": value for name, value in self.best.items()}
        if self.processes.is_main:
            meta = {"iteration": self.learner.iteration, "best": self.best_scores, "streams": self.streams}
            save_tensors(self.folder.checkpoint, state, meta)

    def _restore(self) -> None:
        state, meta = load_tensors(self.folder.checkpoint, RESTART)
        for name in [name for name in state if name.startswith(LOCAL)]:
            state[name] = state[name][self.processes.rank].clone()
        prefix = "best."
        self.best = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        self.best_scores = meta["best"]
        rest = {k: v for k, v in state.items() if not k.startswith(prefix)}
        self.learner.load_state_dict(rest, meta["iteration"])
