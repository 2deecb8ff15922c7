"""One job: one training, then every adapter that is asked for on every target that it left out."""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sourceward.adaptation.base import Unsuitable
from sourceward.bench.cells import FORMAT, key_of
from sourceward.bench.checkpoints import Checkpoint, Part, changed
from sourceward.bench.code import adapter_version, code_version
from sourceward.bench.costs import PREDICT, STEPS
from sourceward.bench.measures import measure, measure_walk
from sourceward.bench.samples import saved_and_lost
from sourceward.bench.specs import CONTROLS, NONE, Spec
from sourceward.bench.throughput import measure_prediction
from sourceward.bench.training import Training, train
from sourceward.data import DomainDataset, open_dataset


@dataclass(frozen=True)
class Job:
    """A training and its questions.

    Args:
        data: what `open_dataset` takes.
        options: of the reader.
        name: of the data, for people.
        fingerprint: of the data.
        left_out: domains that are not trained on.
        questions: (target, contestants) pairs.
        seed: of the training.
        training: how.
        folder: for models.
        pretends: whether the target is a source, left out for selection.
        raw: whether the data is images or texts.
    """

    data: str | DomainDataset
    name: str
    fingerprint: str
    left_out: tuple[str, ...]
    questions: tuple[tuple[str, tuple[Spec, ...]], ...]
    seed: int
    training: Training
    folder: str
    options: tuple[tuple[str, Any], ...] = ()
    pretends: bool = False
    raw: bool = False

    def training_identity(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "code": code_version(self.raw),
            "data": self.fingerprint,
            "left_out": list(self.left_out),
            "seed": self.seed,
            "training": self.training.identity(),
        }

    def cell_identity(self, target: str, spec: Spec) -> dict[str, Any]:
        version = {"target": target, "adapter": spec.key, "adapter_code": adapter_version(spec.name)}
        return self.training_identity() | version

    def cell_key(self, target: str, spec: Spec) -> str:
        return key_of(self.cell_identity(target, spec))

    def lacking(self, present: Any) -> "Job | None":
        """The same job with only the questions whose cells `present(key)` does not know."""
        asked = [
            (target, tuple(spec for spec in specs if not present(self.cell_key(target, spec))))
            for target, specs in self.questions
        ]
        asked = [(target, specs) for target, specs in asked if specs]
        return replace(self, questions=tuple(asked)) if asked else None


def run_job(job: Job) -> list[dict[str, Any]]:
    """Cells, finished or failed; whatever goes wrong in one of them leaves the others alone."""
    try:
        data = _open(job.data, job.options)
        run = "-".join(
            [job.name, "without", *job.left_out, str(job.seed), key_of(job.training_identity())[:8]]
        )
        checkpoint = train(data, job.training, job.left_out, job.seed, Path(job.folder) / _file_name(run))
    except Exception as error:
        return [_failed(job, target, spec, error) for target, specs in job.questions for spec in specs]
    if any(spec.name == NONE for _, specs in job.questions for spec in specs):  # whose cells tell the cost
        with suppress(Exception):  # the answers matter more
            checkpoint.info["cost"] = (checkpoint.info.get("cost") or {}) | {PREDICT: _prediction(checkpoint)}
    return [cell for target, specs in job.questions for cell in _answers(job, checkpoint, target, specs)]


def _prediction(checkpoint: Checkpoint) -> dict[str, Any]:
    """The cost of answering, backbone included."""
    if checkpoint.estimator is not None:
        with changed(checkpoint.estimator, {"num_steps": STEPS}) as estimator:
            settings = estimator._test_time()
    else:
        settings = checkpoint.asked(STEPS) if checkpoint.asked else checkpoint.settings
    return measure_prediction(checkpoint.network, settings, checkpoint.data)


def _answers(job: Job, checkpoint: Checkpoint, target: str, specs: tuple[Spec, ...]) -> list[dict[str, Any]]:
    try:
        part = checkpoint.part(target)
        before = checkpoint.answer(Spec(NONE), part).probabilities
    except Exception as error:
        return [_failed(job, target, spec, error) for spec in specs]
    cells = []
    for spec in specs:
        try:
            cells.append(_cell(job, checkpoint, part, before, target, spec))
        except Exception as error:
            cells.append(_failed(job, target, spec, error))
    return cells


def _cell(
    job: Job, checkpoint: Checkpoint, part: Part, before: np.ndarray, target: str, spec: Spec
) -> dict[str, Any]:
    if spec.name in CONTROLS:
        return _control(job, checkpoint, part, target, spec)
    rows = _rows(spec, len(part.label), job.seed)
    if rows is not None:
        part, before = part.select(rows), before[rows]
    passes = checkpoint.passes(spec, part)
    start = time.perf_counter()
    adapted = checkpoint.answer(spec, part)
    seconds = time.perf_counter() - start
    numbers = _numbers(part, adapted.probabilities, checkpoint.codes)
    numbers |= {} if rows is None else {"rows": rows.tolist()}
    right = np.asarray(numbers["predicted"]) == part.label
    numbers |= measure_walk(adapted, right, checkpoint.sources)
    if adapted.per_source is not None and np.isfinite(adapted.per_source).all():
        votes = checkpoint.codes[adapted.per_source.argmax(2)] == part.label[:, None]
        numbers["per_source"] = {name: float(votes[:, i].mean()) for i, name in enumerate(checkpoint.sources)}
    if job.training.hold_out and checkpoint.validation and rows is None:
        scores = [
            (checkpoint.codes[checkpoint.answer(spec, held).probabilities.argmax(1)] == held.label).mean()
            for held in checkpoint.validation
        ]
        numbers["validation"] = float(np.mean(scores))
    ms = 1000 * seconds / max(len(part.label), 1) + (passes * checkpoint.encode_ms if passes else 0)
    numbers |= {"seconds": seconds, "ms_per_sample": ms}
    samples = saved_and_lost(before, adapted.probabilities, part.label, checkpoint.codes, part.dataset)
    shown = [] if spec.name == NONE else samples
    return _named(job, target, spec) | {"training": checkpoint.info, "numbers": numbers, "samples": shown}


def _control(job: Job, checkpoint: Checkpoint, part: Part, target: str, spec: Spec) -> dict[str, Any]:
    """A classifier trained anew on the rows and features that the network's heads were trained on."""
    answer, codes, fit_seconds = checkpoint.control(spec.name)
    start = time.perf_counter()
    numbers = _numbers(part, answer(checkpoint.raw(part)), codes)
    seconds = time.perf_counter() - start
    ms = 1000 * seconds / max(len(part.label), 1) + checkpoint.encode_ms
    numbers |= {"seconds": seconds, "ms_per_sample": ms}
    return _named(job, target, spec) | {
        "training": {"fit_seconds": fit_seconds},
        "numbers": numbers,
        "samples": [],
    }


def _rows(spec: Spec, count: int, seed: int) -> np.ndarray | None:
    """The rows that a slow contestant answers, or None for all; the seed draws them, labels play no part."""
    if spec.rows is None or spec.rows >= count:
        return None
    return np.sort(np.random.default_rng(seed).permutation(count)[: spec.rows])


def _numbers(part: Part, probability: np.ndarray, codes: np.ndarray) -> dict[str, Any]:
    predicted = codes[probability.argmax(1)].tolist()
    return measure(probability, part.label, codes, part.dataset.classes) | {"predicted": predicted}


def _named(job: Job, target: str, spec: Spec) -> dict[str, Any]:
    return {
        "key": job.cell_key(target, spec),
        "data": job.name,
        "target": target,
        "left_out": list(job.left_out),
        "seed": job.seed,
        "adapter": spec.key,
        "identity": job.cell_identity(target, spec),
    }


def _failed(job: Job, target: str, spec: Spec, error: Exception | str) -> dict[str, Any]:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    named = reason[0] if isinstance(error, str | ValueError) else f"{type(error).__name__}: {reason[0]}"
    return _named(job, target, spec) | {"failed": named, "unsuitable": isinstance(error, Unsuitable)}


def failed_cells(job: Job, reason: str) -> list[dict[str, Any]]:
    """All cells of a job whose worker was lost."""
    return [_failed(job, target, spec, reason) for target, specs in job.questions for spec in specs]


def _open(data: str | DomainDataset, options: tuple[tuple[str, Any], ...]) -> DomainDataset:
    return data if isinstance(data, DomainDataset) else _open_once(data, options)


@lru_cache(maxsize=1)
def _open_once(spec: str, options: tuple[tuple[str, Any], ...]) -> DomainDataset:
    """Jobs of the same data come one after the other; it is read once."""
    return open_dataset(spec, **dict(options))


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in text)
