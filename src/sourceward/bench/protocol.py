"""Leave one domain out: train on the others, let every adapter answer on it, say how sure the numbers are.

Every (data, target, seed) trains once; every adapter meets the same weights and the same features. Target
labels count right answers and do nothing else, but for the selection `oracle`, which says so in its name.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError, unknown_name
from sourceward.bench.cells import FORMAT, Folder
from sourceward.bench.code import code_version
from sourceward.bench.engines import ENGINES, run_jobs
from sourceward.bench.jobs import Job, failed_cells, run_job
from sourceward.bench.provenance import versions
from sourceward.bench.selection import SELECTIONS
from sourceward.bench.specs import CONTROLS, OURS, Spec, needs_tuning
from sourceward.bench.summary import summarize
from sourceward.bench.training import Training
from sourceward.data import DomainDataset, open_dataset


@dataclass(frozen=True)
class Plan:
    """What a bench does.

    Args:
        data: feature files, or raw data; anything `open_dataset` takes.
        specs: contestants, `none` among them.
        targets: domains to leave out; those the owners hold out, or each in turn, when empty.
        seeds: one training each.
        selection: a name in `SELECTIONS`.
        training: how.
        options: of the data's reader.
    """

    data: tuple[str | DomainDataset, ...]
    specs: tuple[Spec, ...]
    targets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    selection: str = "source"
    training: Training = field(default_factory=Training)
    options: tuple[tuple[str, Any], ...] = ()


def bench(
    plan: Plan,
    out: str | Path,
    *,
    engine: str = "local",
    workers: int = 1,
    on_cell: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run what is not there yet and return the results, ready for JSON.

    Args:
        plan: what.
        out: folder of cells and models; cells found there are not computed again.
        engine: `local` or `ray`.
        workers: processes on this machine.
        on_cell: called with each new cell, finished or failed.
    """
    if plan.selection not in SELECTIONS:
        raise unknown_name("selection", plan.selection, SELECTIONS)
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    kept_out = plan.selection in ("source", "oracle")
    training = replace(
        plan.training, hold_out=kept_out, last=plan.selection == "last", tune=needs_tuning(plan.specs)
    )
    plan = replace(plan, training=training)
    datasets = [open_dataset(data, **dict(plan.options)) for data in plan.data]
    for dataset in datasets:
        for own in ({}, *(spec.own for spec in plan.specs if spec.name == OURS)):
            replace(training, settings=training.settings | own).check(dataset.kind)
    jobs = [
        job for data, dataset in zip(plan.data, datasets) for job in _jobs(plan, data, dataset, Path(out))
    ]
    if not jobs:
        raise InputError(f"No data holds out any of {list(plan.targets)}. Leave --targets out to run all.")
    classes = {name_of(data, dataset): list(dataset.classes) for data, dataset in zip(plan.data, datasets)}
    labels = {
        (name_of(data, dataset), name): dataset.of_domains([name]).labels
        for data, dataset in zip(plan.data, datasets)
        for name in dataset.domain_names
    }
    folder = Folder(Path(out), _configuration(plan, jobs))
    folder.open()
    asked = [job.lacking(folder.load) for job in jobs]
    waiting = [job for job in asked if job is not None]
    if workers > 1 and waiting:
        with suppress(Exception):  # a worker will say what is wrong, and the rest goes on
            for dataset in datasets:
                training.prepare(dataset)
    failed = _run(waiting, folder, engine, workers, on_cell)
    cells = {key: cell for job in jobs for key, cell in _finished(job, folder)}
    results = summarize(plan, jobs, cells, failed, labels)
    return {
        "kind": "bench",
        "format": FORMAT,
        "settings": _settings(plan, datasets[0].kind),
        "seeds": list(plan.seeds),
        "selection": plan.selection,
        "versions": versions() | {"code": folder.configuration["code"]},
        "classes": classes,
        **results,
    }


def _run(
    waiting: Sequence[Job],
    folder: Folder,
    engine: str,
    workers: int,
    on_cell: Callable[[dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    """Compute and keep the cells of jobs; returns those that failed."""
    failed = []
    for number, outcome in run_jobs(run_job, waiting, engine, workers):
        if isinstance(outcome, BaseException):
            reason = f"The worker was lost ({type(outcome).__name__}); run the same command again."
            outcome = failed_cells(waiting[number], reason)
        for cell in map(partial(_checked, waiting[number]), outcome):
            if "failed" in cell:
                failed.append(cell)
            else:
                folder.store(cell)
            if on_cell is not None:
                on_cell(cell)
    return failed


def _checked(job: Job, cell: dict[str, Any]) -> dict[str, Any]:
    """A cell under the name that it has here, or why it cannot be used."""
    spec = next(spec for _, specs in job.questions for spec in specs if spec.key == cell["adapter"])
    identity = job.cell_identity(cell["target"], spec)
    if "failed" in cell or cell["identity"] == identity:
        return cell
    reason = "A worker runs other code of sourceward than this machine; install the same version on both."
    return {**cell, "failed": reason, "unsuitable": False}


def _finished(job: Job, folder: Folder) -> Iterable[tuple[str, dict[str, Any]]]:
    for target, specs in job.questions:
        for spec in specs:
            cell = folder.load(job.cell_key(target, spec))
            if cell is not None:
                yield cell["key"], cell


def _jobs(plan: Plan, data: str | DomainDataset, dataset: DomainDataset, out: Path) -> list[Job]:
    """Trainings of one dataset: for each set of domains left out and each seed."""
    base = Job(
        data,
        name_of(data, dataset),
        dataset.fingerprint(),
        (),
        (),
        0,
        plan.training,
        str((out / "runs").absolute()),
        plan.options,
        raw=dataset.kind != "features",
    )
    adapters = tuple(spec for spec in plan.specs if spec.name not in CONTROLS)
    jobs = []
    for left_out, targets in leave_out(dataset, plan.targets).items():
        sources = [name for name in dataset.domain_names if name not in left_out]
        if not sources:
            raise InputError(f"No domain is left to train on without {', '.join(left_out)}.")
        asked = tuple((target, plan.specs) for target in targets)
        for seed in plan.seeds:
            jobs.append(replace(base, left_out=left_out, questions=asked, seed=seed))
            jobs += _pretend(plan, base, left_out, sources, adapters, seed)
    return jobs


def _pretend(
    plan: Plan, base: Job, left_out: tuple[str, ...], sources: list[str], specs: tuple[Spec, ...], seed: int
) -> list[Job]:
    """Each source left out as well, as if it were the target: what selection may look at."""
    if plan.selection != "leave-one-source-out":
        return []
    if len(sources) < 2:
        raise InputError(
            "Selection 'leave-one-source-out' needs two sources or more, but without "
            f"{', '.join(left_out)} there is only {sources[0]!r}. Use --selection source or last."
        )
    return [
        replace(base, left_out=(*left_out, source), questions=((source, specs),), seed=seed, pretends=True)
        for source in sources
    ]


def leave_out(dataset: DomainDataset, wanted: Sequence[str] = ()) -> dict[tuple[str, ...], list[str]]:
    """Domains that are left out together, and which of them are asked about: those that are wanted, of those
    that the owners hold out or of all. Several held-out domains stay held out together: the model of one must
    not train on another."""
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
    """`pacs` for pacs:/path, the file's name without its ending for the rest."""
    spec = dataset.name if isinstance(data, DomainDataset) else data
    prefix, colon, _ = spec.partition(":")
    return prefix if colon and "/" not in prefix and len(prefix) > 1 else Path(spec).stem


def _configuration(plan: Plan, jobs: Sequence[Job]) -> dict[str, Any]:
    """What must be the same for two commands to share a folder; targets, seeds and adapters may grow."""
    return {
        "format": FORMAT,
        "code": code_version(any(job.raw for job in jobs)),
        "data": {job.name: job.fingerprint for job in jobs},
        "selection": plan.selection,
        "training": plan.training.identity(),
    }


def _settings(plan: Plan, kind: str) -> dict[str, Any]:
    from sourceward.estimator import EnergyAdapter

    training = plan.training
    if kind == "features":
        params = EnergyAdapter(**training.settings).get_params()
        return {
            k: v for k, v in params.items() if k not in ("num_steps", "random_state", "verbose", "checkpoint")
        }
    full = training.fit_settings(kind)
    weights = None if training.weights is None else Path(training.weights).name
    named = {"backbone": training.backbone, "weights": weights, "freeze": training.freeze}
    return named | {"preset": training.preset} | full.to_dict()
