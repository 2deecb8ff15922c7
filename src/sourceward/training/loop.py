"""THE training loop: draw a batch, take a step, log, validate, checkpoint; and go on after a kill.

    Training(learner, lambda start: feed, checkpoint=path, fingerprint=...).run()

Killed anywhere and started again with the same arguments, a training ends with the same bits.

After every validation a rule of `SELECT` decides whether the present weights replace those kept so far: no
more than one set is ever kept.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sourceward._util.errors import CheckpointError, InputError
from sourceward._util.progress import progress_bar
from sourceward._util.storage import RESTART, load_tensors, save_tensors
from sourceward._util.values import Whole, check, short
from sourceward.data.feeds import Feed, ResidentFeed
from sourceward.training.learner import CHECK_EVERY, Learner

SELECT = {
    "best": "the best on source validation, of equals the later",
    "late": "the latest that is within one standard error of the best on source validation",
    "last": "the last, whatever source validation says",
}


def takes_over(scores: dict[str, Any], kept: Mapping[str, Any], rule: str, on: str = "accuracy") -> bool:
    """Whether the weights behind `scores` are kept in place of those behind `kept`, which may be empty.

    `late` is for averages of many iterates: near its ceiling source validation tells them apart by luck
    alone, and the longer average is the safer bet. It writes `peak`, the best validation so far, to `scores`.
    One set of weights is enough for it: the threshold rises only with a validation that exceeds it.

    Args:
        scores: `on` and, for `late`, `per_source`: `on` and the number of `samples` of each source.
        kept: scores of the weights kept so far.
        rule: a name in `SELECT`.
        on: the score to look at, a mean over sources.

    >>> looks = [0.90, 0.97, 0.96, 0.93]
    >>> kept = {}
    >>> for iteration, accuracy in enumerate(looks):
    ...     each = {name: {"accuracy": accuracy, "samples": 100} for name in "ab"}
    ...     scores = {"accuracy": accuracy, "per_source": each, "iteration": iteration}
    ...     if takes_over(scores, kept, "late"):
    ...         kept = scores
    >>> kept["iteration"], kept["peak"]["iteration"], round(kept["peak"]["standard_error"], 3)
    (2, 1, 0.015)
    """
    if rule == "last":
        return True
    if rule == "best":
        return scores[on] >= kept.get(on, -math.inf)
    peak = kept.get("peak")
    if peak is None or scores[on] >= peak[on]:
        peak = {on: scores[on], "standard_error": standard_error(scores["per_source"], on)}
        peak["iteration"] = scores["iteration"]
    scores["peak"] = peak
    return scores[on] >= peak[on] - peak["standard_error"]


def standard_error(per_source: Mapping[str, Mapping[str, Any]], on: str = "accuracy") -> float:
    """Of a mean over sources of shares of right answers: binomial in each source, with two right and two
    wrong answers added (Agresti and Coull, 1998), so that a perfect score is not taken for a sure one.

    >>> look = {"a": {"accuracy": 0.9, "samples": 100}, "b": {"accuracy": 1.0, "samples": 9}}
    >>> round(standard_error(look), 3)
    0.062
    """
    variances = []
    for source in per_source.values():
        share = (source[on] * source["samples"] + 2) / (source["samples"] + 4)
        variances.append(share * (1 - share) / source["samples"])
    return math.sqrt(sum(variances)) / len(variances)


class Log(Protocol):
    """Where a training writes its losses and validation scores."""

    def start(self, iteration: int) -> None:
        """A training begins at `iteration`, or goes on from a checkpoint there."""

    def write(self, iteration: int, line: dict[str, Any]) -> None: ...


class Training:
    """One training, from its start or its checkpoint to its end.

    Args:
        learner: weights, optimizer and randomness; its `loop.max_iter` is the end.
        feed: from the iteration to start at to a feed of batches.
        rows: samples of one iteration, over all processes.
        name: for the progress bar.
        checkpoint: file to go on from, and to write every `checkpoint_every` iterations.
        fingerprint: of data and settings; a checkpoint with another one is refused.
        validate: scores of a network on source validation, looked at every `evaluate_every` iterations.
        select: the rule by which weights are kept, see `selection`; `select_on` is the score it reads.
        log: where losses and scores are written.
        progress: show a bar; when standard error is a terminal if None.
    """

    def __init__(
        self,
        learner: Learner,
        feed: Callable[[int], Feed],
        rows: int,
        *,
        name: str = "training",
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 50,
        fingerprint: str = "",
        validate: Callable[[Any], dict[str, Any]] | None = None,
        evaluate_every: int | None = None,
        select: str = "best",
        select_on: str = "accuracy",
        log: Log | None = None,
        progress: bool | None = None,
    ) -> None:
        self.learner, self.feed, self.name, self.log, self.progress = learner, feed, name, log, progress
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.checkpoint_every, self.fingerprint = checkpoint_every, fingerprint
        self.validate, self.select, self.select_on = validate, select, select_on
        self.evaluate_every = evaluate_every or max(1, learner.loop.max_iter // 10)
        self.best: dict[str, Tensor] = {}
        self.best_scores: dict[str, Any] = {}
        self.speed, self.rows, self.streams = Speed(), rows, False

    def run(self) -> Any:
        """Train to the end and return the weights that count: the average, where one is kept."""
        if self.checkpoint is not None and self.checkpoint.exists():
            self._restore(self.checkpoint)
        if self.log is not None:
            self.log.start(self.learner.iteration)
        with _own_randomness():
            self._loop()
        return self.learner.current.eval()

    def _loop(self) -> None:
        learner, total, note = self.learner, self.learner.loop.max_iter, ""
        if learner.iteration >= total:
            return
        feed = self.feed(learner.iteration)
        self.streams = not isinstance(feed, ResidentFeed)
        self._train_mode()
        self.speed.start(learner.iteration, self.rows)
        with progress_bar(total, self.name, self.progress) as advance:
            while learner.iteration < total:
                loss = learner.step(feed)
                done = learner.iteration
                if done % CHECK_EVERY == 0 or done == total:
                    note = self._log(loss)
                advance(done, note)
                if self.validate is not None and (done % self.evaluate_every == 0 or done == total):
                    self._validate(self.validate)
                if done % self.checkpoint_every == 0 or done == total:
                    self._save()

    def _train_mode(self) -> None:
        self.learner.network.train()
        if self.learner.loop.freeze_batchnorm:
            freeze_batchnorm(self.learner.network)

    def _log(self, loss: Any) -> str:
        """Write the loss down and return what the progress bar says; waits for the device."""
        parts = self.learner.parts(loss)
        speed = self.speed.lap(self.learner.iteration)
        self._write({"loss": parts, "per_second": round(speed, 1)})
        terms = {"total": "loss", "classify": "classify", "energy_gap": "gap"}
        text = " ".join(f"{word} {parts[name]:.3f}" for name, word in terms.items() if name in parts)
        scores = self.best_scores.get(self.select_on)
        return f"{text} {f'val {100 * scores:.1f} ' if scores is not None else ''}{speed:,.0f}/s"

    def _validate(self, validate: Callable[[Any], dict[str, Any]]) -> None:
        """Score the weights on source validation, and keep them where the rule says so."""
        network = self.learner.current.eval()
        scores = validate(network)
        scores["iteration"] = self.learner.iteration
        if takes_over(scores, self.best_scores, self.select, self.select_on):
            self.best_scores = scores
            self.best = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
        self._train_mode()
        self._write({"validation": scores})
        self.speed.pause(self.learner.iteration)

    def _write(self, line: dict[str, Any]) -> None:
        if self.log is not None:
            self.log.write(self.learner.iteration, line)

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        learner, processes = self.learner, self.learner.processes
        state = learner.state_dict()
        for name in learner.local_names():
            state[name] = processes.gather(state[name], learner.device)
        state |= {f"best.{name}": value for name, value in self.best.items()}
        if processes.is_main:
            meta = {"iteration": learner.iteration, "fingerprint": self.fingerprint}
            save_tensors(self.checkpoint, state, meta | {"best": self.best_scores, "streams": self.streams})
        self.speed.pause(learner.iteration)

    def _restore(self, checkpoint: Path) -> None:
        try:
            state, meta = load_tensors(checkpoint, RESTART)
        except InputError as error:
            raise CheckpointError(checkpoint, str(error)) from None
        if meta.get("fingerprint") != self.fingerprint:
            raise CheckpointError(
                checkpoint,
                f"'{checkpoint}' belongs to other data or settings. Remove it to start anew, or name "
                "another file.",
            )
        try:
            check(meta, {"iteration": Whole(most=self.learner.loop.max_iter), "best": dict})
            for name in self.learner.local_names():
                state[name] = state[name][self.learner.processes.rank].clone()
            prefix = "best."
            self.best = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            self.best_scores = meta["best"]
            rest = {k: v for k, v in state.items() if not k.startswith(prefix)}
            self.learner.load_state_dict(rest, meta["iteration"])
        except Exception as error:  # of whatever its tensors lead to
            raise CheckpointError(
                checkpoint, f"'{checkpoint}' does not fit this training ({short(error)}). {RESTART}"
            ) from None


def load_finished(network: nn.Module, path: Path) -> dict[str, Any]:
    """Load the weights of a finished training, and return its scores and cost."""
    state, info = load_tensors(path, RESTART)
    try:
        check(info, {"scores": dict, "cost": dict})
        network.load_state_dict(state)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"'{path}' does not fit this training ({short(error)}). {RESTART}") from None
    return info


class Speed:
    """Samples per second; time that ends with a `pause`, such as validation, does not count."""

    def __init__(self) -> None:
        self.laps: list[tuple[int, float]] = []

    def start(self, iteration: int, rows: int) -> None:
        self.rows = rows
        self.pause(iteration)

    def pause(self, iteration: int) -> None:
        """Time counts from here."""
        self.mark, self.clock = iteration, time.monotonic()

    def lap(self, iteration: int) -> float:
        """Samples per second since the last call; the device must have finished."""
        rows, seconds = self.rows * (iteration - self.mark), time.monotonic() - self.clock
        self.laps.append((rows, seconds))
        self.pause(iteration)
        return rows / max(seconds, 1e-9)

    def steady(self) -> float | None:
        """Samples per second of all laps but the first, which includes kernel selection and allocation."""
        laps = self.laps[1:] or self.laps
        seconds = sum(seconds for _, seconds in laps)
        return round(sum(rows for rows, _ in laps) / seconds, 1) if seconds else None


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Leave the global random state as it was: dropout inside backbones draws from it. cuDNN is
    deterministic meanwhile, so that a resumed training ends with the same bits."""
    outer, cudnn = torch.get_rng_state(), torch.backends.cudnn
    before, cudnn.deterministic = cudnn.deterministic, True
    try:
        yield
    finally:
        cudnn.deterministic = before
        torch.set_rng_state(outer)


def freeze_batchnorm(module: nn.Module) -> None:
    """Put every batch norm into eval mode, whatever the mode around it: its statistics stay fixed."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()
