"""Leave one domain out: train on the others, evaluate every method on it, with intervals.

Every (data, target, seed) trains once; all methods use the same weights and features. Target labels count
right predictions and do nothing else, except in the selection `oracle`, which is named so.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sourceward._util.engines import ENGINES, run_jobs
from sourceward._util.errors import InputError, unknown_name
from sourceward.bench.protocol.jobs import Job, failed_runs, run_job
from sourceward.bench.protocol.methods import AUTO, EBTSA, Method
from sourceward.bench.protocol.provenance import code_version, versions, weights_name
from sourceward.bench.protocol.runs import FORMAT, Folder
from sourceward.bench.protocol.summary import SELECTIONS, summarize
from sourceward.bench.protocol.training import Training
from sourceward.data import DomainDataset, open_dataset

OnRun = Callable[[dict[str, Any]], None]
OnResults = Callable[[dict[str, Any]], Any]

RESULTS_EVERY, SHARE = 30.0, 0.05
"""Seconds between results of a bench that goes on, and the largest share of its time that they take."""


@dataclass(frozen=True)
class Plan:
    """What a bench runs.

    Args:
        data: feature files, or raw data; anything `open_dataset` takes.
        methods: to compare, `none` among them.
        targets: domains to leave out; when empty, those that the data holds out, or each in turn.
        seeds: one training each.
        selection: a name in `SELECTIONS`.
        training: how.
        options: of the data's reader.
    """

    data: tuple[str | DomainDataset, ...]
    methods: tuple[Method, ...]
    targets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    selection: str = "source"
    training: Training = field(default_factory=Training)
    options: tuple[tuple[str, Any], ...] = ()


class Regularly:
    """Hands on results now and then: `RESULTS_EVERY` seconds after the last ones or later.

    Args:
        function: that takes them; None for nobody.
        results: computes them.
    """

    def __init__(self, function: OnResults | None, results: Callable[[], dict[str, Any]]) -> None:
        self.function, self.results, self.due = function, results, time.monotonic() + RESULTS_EVERY

    def __call__(self) -> None:
        start = time.monotonic()
        if self.function is None or start < self.due:
            return
        with suppress(Exception):  # the runs matter more, and the last results come at their end
            self.function(self.results())
        taken = time.monotonic() - start
        self.due = time.monotonic() + max(RESULTS_EVERY, taken / SHARE)


@dataclass(frozen=True)
class Prepared:
    """A plan that was checked, with its jobs and the folder of its runs."""

    plan: Plan
    jobs: list[Job]
    named: dict[str, DomainDataset]
    folder: Folder

    def labels(self) -> dict[tuple[str, str], Any]:
        """Return the labels of each (data, target)."""
        return {
            (name, domain): dataset.of_domains([domain]).labels
            for name, dataset in self.named.items()
            for domain in dataset.domain_names
        }

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs that are there."""
        return [run for key in self._keys() if (run := self.folder.load(key)) is not None]

    def _keys(self) -> list[str]:
        return [job.run_key(target, method) for job in self.jobs for target, method in job.pairs()]

    def failed(self) -> list[dict[str, Any]]:
        """Return the runs that failed or do not apply."""
        return [run for key in self._keys() if (run := self.folder.failure(key)) is not None]

    def results(self) -> dict[str, Any]:
        """Return the results of the runs that are there, ready for JSON."""
        plan, kind = self.plan, next(iter(self.named.values())).kind
        runs, failed = self.runs(), self.failed()
        return {
            "kind": "bench",
            "format": FORMAT,
            "settings": _settings(plan, kind),
            "seeds": list(plan.seeds),
            "selection": plan.selection,
            "versions": versions() | {"code": self.folder.configuration["code"]},
            "classes": {name: list(dataset.classes) for name, dataset in self.named.items()},
            "unfinished": sum(len(job.pairs()) for job in self.jobs) - len(runs) - len(failed),
            **summarize(plan, self.jobs, runs, failed, self.labels()),
        }


def bench(
    plan: Plan,
    out: str | Path,
    *,
    engine: str = "local",
    workers: int = 1,
    on_run: OnRun | None = None,
    on_results: OnResults | None = None,
) -> dict[str, Any]:
    """Compute the runs that are missing and return the results, ready for JSON.

    Args:
        plan: what to run.
        out: folder of runs and models; runs found there are not computed again.
        engine: `local` or `ray`.
        workers: processes on this machine; 0 returns the results of the finished runs.
        on_run: called with each new run, finished or failed.
        on_results: called from time to time with the results so far: what is left of a bench that is killed.
    """
    check_engine(engine)
    prepared = prepare(plan, out)
    so_far = Regularly(on_results, prepared.results)
    run_all([prepared], engine, workers, on_run, so_far)
    return prepared.results()


def check_engine(name: str) -> None:
    """Refuse an unknown engine."""
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)


def prepare(plan: Plan, out: str | Path) -> Prepared:
    """Check a plan and open its folder; nothing is trained yet."""
    if plan.selection not in SELECTIONS:
        raise unknown_name("selection", plan.selection, SELECTIONS)
    training = replace(
        plan.training, last=plan.selection == "last", tune=any(method.auto for method in plan.methods)
    )
    plan = replace(plan, training=training)
    datasets = [open_dataset(data, **dict(plan.options)) for data in plan.data]
    for dataset in datasets:
        for own in ({}, *(method.own for method in plan.methods if method.name == EBTSA)):
            own = {name: value for name, value in own.items() if value != AUTO}
            replace(training, settings=training.settings | own).fit_settings(dataset.kind)
    jobs = [
        job for data, dataset in zip(plan.data, datasets) for job in jobs_of(plan, data, dataset, Path(out))
    ]
    if not jobs:
        raise InputError(f"No data holds out any of {list(plan.targets)}. Leave --targets out to run all.")
    folder = Folder(Path(out), _configuration(plan, jobs))
    folder.open()
    named = {name_of(data, dataset): dataset for data, dataset in zip(plan.data, datasets)}
    return Prepared(plan, jobs, named, folder)


def run_all(
    prepared: Sequence[Prepared],
    engine: str,
    workers: int,
    on_run: OnRun | None,
    so_far: Callable[[], None] = lambda: None,
) -> None:
    """Compute and store the missing runs of several plans; `so_far` is called after each training.

    The plans share data and backbone. With 0 workers nothing is computed.
    """
    if engine == "local" and workers == 0:
        return
    waiting = [
        (place, left)
        for place, own in enumerate(prepared)
        for job in own.jobs
        if (left := job.lacking(own.folder.settled)) is not None
    ]
    if workers > 1 and waiting:
        with suppress(Exception):  # a worker will report what is wrong, and the rest goes on
            for dataset in prepared[0].named.values():
                prepared[0].plan.training.prepare(dataset)
    for number, outcome in run_jobs(run_job, [job for _, job in waiting], engine, workers):
        place, job = waiting[number]
        if isinstance(outcome, BaseException):
            reason = f"The worker was lost ({type(outcome).__name__}); run the same command again."
            outcome = failed_runs(job, reason)
        for run in (_checked(job, run) for run in outcome):
            prepared[place].folder.store(run)
            if on_run is not None:
                on_run(run)
        so_far()


def _checked(job: Job, run: dict[str, Any]) -> dict[str, Any]:
    """Return a run under its key on this machine, failed where it was computed by other code than here."""
    method = next(method for _, method in job.pairs() if method.key == run["method"])
    run = {**run, "key": job.run_key(run["target"], method)}
    if "failed" in run or run["identity"] == job.run_identity(run["target"], method):
        return run
    reason = "A worker runs other code of sourceward than this machine; install the same version on both."
    return {**run, "failed": reason, "unsuitable": False}


def jobs_of(plan: Plan, data: str | DomainDataset, dataset: DomainDataset, out: Path) -> list[Job]:
    """Return the trainings of one dataset: one for each set of left-out domains and each seed."""
    name, folder = name_of(data, dataset), str((out / "models").absolute())
    base = Job(data, name, dataset.fingerprint(), (), (), 0, plan.training, folder, plan.options)
    jobs = []
    for left_out, targets in leave_out(dataset, plan.targets).items():
        if set(left_out) == set(dataset.domain_names):
            raise InputError(f"No domain is left to train on without {', '.join(left_out)}.")
        evaluations = tuple((target, plan.methods) for target in targets)
        jobs += [replace(base, left_out=left_out, evaluations=evaluations, seed=seed) for seed in plan.seeds]
    return jobs


def leave_out(dataset: DomainDataset, wanted: Sequence[str] = ()) -> dict[tuple[str, ...], list[str]]:
    """Return the domains that are left out together, and which of them are targets: the wanted ones, of
    those that the data holds out or of all. Several held-out domains stay held out together: the model of
    one must not train on another."""
    possible = dataset.targets or dataset.domain_names
    for name in wanted:
        if name not in dataset.domain_names:
            raise unknown_name("target", name, possible)
    groups: dict[tuple[str, ...], list[str]] = {}
    for target in possible:
        if not wanted or target in wanted:
            groups.setdefault(tuple(sorted({*dataset.targets, target})), []).append(target)
    return groups


def name_of(data: str | DomainDataset, dataset: DomainDataset) -> str:
    """Return `pacs` for pacs:/path, the file's name without its ending for other data."""
    spec = dataset.name if isinstance(data, DomainDataset) else data
    prefix, colon, _ = spec.partition(":")
    return prefix if colon and "/" not in prefix and len(prefix) > 1 else Path(spec).stem


def _configuration(plan: Plan, jobs: Sequence[Job]) -> dict[str, Any]:
    """Return what two commands that share a folder must agree on; targets, seeds and methods may grow."""
    return {
        "format": FORMAT,
        "code": code_version(),
        "data": {job.name: job.fingerprint for job in jobs},
        "selection": plan.selection,
        "training": plan.training.identity(),
    }


def _settings(plan: Plan, kind: str) -> dict[str, Any]:
    training = plan.training
    weights = weights_name(training.weights)
    named = {"backbone": training.backbone, "weights": weights, "freeze": training.freeze}
    return named | {"preset": training.preset} | training.fit_settings(kind).to_dict()
