"""One job: one training, then every method on every target that the training left out."""

import gc
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sourceward.adaptation.base import Unsuitable
from sourceward.bench.protocol.checkpoint import Checkpoint, Part
from sourceward.bench.protocol.measures import measure, measure_adaptation
from sourceward.bench.protocol.methods import CONTROLS, NONE, Method
from sourceward.bench.protocol.provenance import adapter_version, code_version
from sourceward.bench.protocol.runs import FORMAT, key_of
from sourceward.bench.protocol.training import Training, train
from sourceward.bench.speed.throughput import measure_prediction
from sourceward.data import DomainDataset, open_dataset
from sourceward.model.examples import saved_and_lost

MEASURED_STEPS = 20
"""Number of steps of the prediction whose cost is measured."""


@dataclass(frozen=True)
class Job:
    """A training and what is evaluated on it.

    Args:
        data: anything `open_dataset` takes.
        name: of the data, for people.
        fingerprint: of the data.
        left_out: domains that are not trained on.
        evaluations: (target, methods) pairs.
        seed: of the training.
        training: how.
        folder: for models.
        options: of the data's reader.
    """

    data: str | DomainDataset
    name: str
    fingerprint: str
    left_out: tuple[str, ...]
    evaluations: tuple[tuple[str, tuple[Method, ...]], ...]
    seed: int
    training: Training
    folder: str
    options: tuple[tuple[str, Any], ...] = ()

    def training_identity(self) -> dict[str, Any]:
        """Return everything that the trained weights depend on."""
        return {
            "format": FORMAT,
            "code": code_version(),
            "data": self.fingerprint,
            "left_out": list(self.left_out),
            "seed": self.seed,
            "training": self.training.identity(),
        }

    def run_identity(self, target: str, method: Method) -> dict[str, Any]:
        """Return everything that the numbers of a run depend on."""
        version = {"target": target, "method": method.key, "adapter_code": adapter_version(method.name)}
        return self.training_identity() | version

    def run_key(self, target: str, method: Method) -> str:
        """Return the name of a run's file."""
        return key_of(self.run_identity(target, method))

    def pairs(self) -> list[tuple[str, Method]]:
        """Return every (target, method)."""
        return [(target, method) for target, methods in self.evaluations for method in methods]

    def lacking(self, present: Any) -> "Job | None":
        """Return the job with only the runs that `present(key)` does not find; None without any."""
        left = [
            (target, tuple(m for m in methods if not present(self.run_key(target, m))))
            for target, methods in self.evaluations
        ]
        left = [(target, methods) for target, methods in left if methods]
        return replace(self, evaluations=tuple(left)) if left else None


def run_job(job: Job) -> list[dict[str, Any]]:
    """Return the runs of a job, finished or failed; one that fails leaves the others alone."""
    gc.collect()  # of the job before: others share the device
    torch.cuda.empty_cache()
    try:
        data = job.data if isinstance(job.data, DomainDataset) else _open(job.data, job.options)
        name = "-".join(
            [job.name, "without", *job.left_out, str(job.seed), key_of(job.training_identity())[:8]]
        )
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        checkpoint = train(data, job.training, job.left_out, job.seed, Path(job.folder) / name)
    except Exception as error:
        return failed_runs(job, error)
    if any(method.name == NONE for _, method in job.pairs()):  # its runs carry the cost
        with suppress(Exception):  # the predictions matter more
            predict = measure_prediction(checkpoint.model, MEASURED_STEPS, data)
            checkpoint.info["cost"] = (checkpoint.info["cost"] or {}) | {"predict": predict}
    return [run for target, methods in job.evaluations for run in _evaluate(job, checkpoint, target, methods)]


def _evaluate(
    job: Job, checkpoint: Checkpoint, target: str, methods: tuple[Method, ...]
) -> list[dict[str, Any]]:
    try:
        part = checkpoint.part(target)
        before = checkpoint.predict(Method(NONE), part).probabilities
    except Exception as error:
        return [_failed(job, target, method, error) for method in methods]
    runs = []
    for method in methods:
        try:
            measured = (
                _control_run(checkpoint, part, method)
                if method.name in CONTROLS
                else _run(job, checkpoint, part, before, method)
            )
            runs.append(_named(job, target, method) | measured)
        except Exception as error:
            runs.append(_failed(job, target, method, error))
    return runs


def _run(job: Job, checkpoint: Checkpoint, part: Part, before: np.ndarray, method: Method) -> dict[str, Any]:
    """Evaluate an adapter; `before` are the probabilities without adaptation."""
    rows = _drawn_rows(method, len(part.label), job.seed)
    if rows is not None:
        part, before = part.select(rows), before[rows]
    passes = checkpoint.passes(method, part)
    start = time.perf_counter()
    adapted = checkpoint.predict(method, part)
    seconds = time.perf_counter() - start
    numbers = _numbers(part, adapted.probabilities, checkpoint.codes)
    numbers |= {} if rows is None else {"rows": rows.tolist()}
    right = np.asarray(numbers["predicted"]) == part.label
    numbers |= measure_adaptation(adapted, right, checkpoint.sources)
    if adapted.per_source is not None and np.isfinite(adapted.per_source).all():
        own = checkpoint.codes[adapted.per_source.argmax(2)] == part.label[:, None]
        numbers["per_source"] = {name: float(own[:, i].mean()) for i, name in enumerate(checkpoint.sources)}
    if rows is None:
        scores = [
            checkpoint.right(held, checkpoint.predict(method, held).probabilities).mean()
            for held in checkpoint.validation
        ]
        numbers["validation"] = float(np.mean(scores))
    ms = 1000 * seconds / max(len(part.label), 1) + (passes * checkpoint.encode_ms if passes else 0)
    numbers |= {"seconds": seconds, "ms_per_sample": ms}
    samples = saved_and_lost(before, adapted.probabilities, part.label, checkpoint.codes, part.dataset)
    return {
        "training": checkpoint.info,
        "numbers": numbers,
        "samples": [] if method.name == NONE else samples,
    }


def _control_run(checkpoint: Checkpoint, part: Part, method: Method) -> dict[str, Any]:
    """Evaluate a classifier trained on the rows and features of the network's heads."""
    classifier, codes, fit_seconds = checkpoint.control(method.name)
    start = time.perf_counter()
    numbers = _numbers(part, classifier(checkpoint.raw(part)), codes)
    seconds = time.perf_counter() - start
    ms = 1000 * seconds / max(len(part.label), 1) + checkpoint.encode_ms
    numbers |= {"seconds": seconds, "ms_per_sample": ms}
    return {"training": {"fit_seconds": fit_seconds}, "numbers": numbers, "samples": []}


def _drawn_rows(method: Method, count: int, seed: int) -> np.ndarray | None:
    """Return the rows on which a slow method is evaluated, drawn without looking at labels; None for all."""
    if method.max_rows is None or method.max_rows >= count:
        return None
    return np.sort(np.random.default_rng(seed).permutation(count)[: method.max_rows])


def _numbers(part: Part, probability: np.ndarray, codes: np.ndarray) -> dict[str, Any]:
    predicted = codes[probability.argmax(1)].tolist()
    return measure(probability, part.label, codes, part.dataset.classes) | {"predicted": predicted}


def _named(job: Job, target: str, method: Method) -> dict[str, Any]:
    return {
        "key": job.run_key(target, method),
        "data": job.name,
        "target": target,
        "left_out": list(job.left_out),
        "seed": job.seed,
        "method": method.key,
        "identity": job.run_identity(target, method),
    }


def _failed(job: Job, target: str, method: Method, error: Exception | str) -> dict[str, Any]:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    named = reason[0] if isinstance(error, str | ValueError) else f"{type(error).__name__}: {reason[0]}"
    return _named(job, target, method) | {"failed": named, "unsuitable": isinstance(error, Unsuitable)}


def failed_runs(job: Job, error: Exception | str) -> list[dict[str, Any]]:
    """Return all runs of a job that could not train or whose worker was lost."""
    return [_failed(job, target, method, error) for target, method in job.pairs()]


@lru_cache(maxsize=1)
def _open(data: str, options: tuple[tuple[str, Any], ...]) -> DomainDataset:
    """Open data once: jobs of the same data follow one another."""
    return open_dataset(data, **dict(options))
