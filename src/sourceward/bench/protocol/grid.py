"""Every training method under every test-time method: one bench for each training method, and their grid.

DIR/methods/NAME/           the bench of one training method: its configuration, runs and models
DIR/cost.json               the cost of an iteration by each training method
DIR/results.json            the grid: accuracy of each pair, cost of training, failures
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.errors import InputError, unknown_name
from sourceward.bench.protocol.cost import Costs, keep_costs, known_costs, measured_by, training_cost
from sourceward.bench.protocol.methods import NONE
from sourceward.bench.protocol.plan import (
    OnResults,
    OnRun,
    Plan,
    Prepared,
    Regularly,
    check_engine,
    leave_out,
    prepare,
    run_all,
)
from sourceward.bench.protocol.training import Training
from sourceward.bench.published import published_beside
from sourceward.data import DomainDataset, open_dataset
from sourceward.fitting.checks import make_backbone
from sourceward.functional.metrics import paired_interval
from sourceward.training.finetune import FINETUNE_METHODS
from sourceward.training.methods import list_methods, methods_table
from sourceward.training.presets import PRESETS

ERM, SWAD, ALL = "erm", "swad", "all"
AVERAGED = {
    "finetune.method": ERM,
    "finetune.average": 1.0,
    "finetune.schedule": "constant",
    "finetune.select": "late",
}
"""`swad`: ERM whose iterates are averaged, as by default for pretrained backbones. SWAD (Cha et al., NeurIPS
2021) chooses the first and the last one by the validation loss."""

SWAD_ABOUT = "ERM with a constant learning rate, whose iterates are averaged; `finetune.average=1`."


class NoBackbone(InputError):
    """The backbone cannot be made: no method can train it."""


def training_methods(text: str) -> list[str]:
    """Return what `--methods` names; `all` stands for every method that applies.

    >>> training_methods("erm, swad")
    ['erm', 'swad']
    """
    names = [*dict.fromkeys(name.strip() for name in text.split(",") if name.strip())]
    for name in names:
        if name not in (*list_methods(), SWAD, ALL):
            raise unknown_name("training method", name, [*list_methods(), SWAD, ALL])
    if not names:
        raise InputError("--methods names no training method: --methods erm,mixstyle, for instance, or all.")
    return names


def layer_of(name: str) -> dict[str, Any]:
    """Return the settings of a training method: without averaging, but for `swad`; and what it needs."""
    if name == SWAD:
        return dict(AVERAGED)
    return {"finetune.method": name, "finetune.average": 0.0, **FINETUNE_METHODS[name].needs.settings}


def check_methods(plan: Plan, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the training methods to run, and why others of `all` do not apply; refuse what cannot run."""
    given = [key for key in plan.training.settings if key in ("finetune.method", "recipe")]
    if plan.training.freeze or given:
        what = f"--set {given[0]}" if given else "--freeze"
        raise InputError(f"--methods trains a backbone by each of several methods: leave {what} out.")
    preset = plan.training.preset
    if preset is not None and PRESETS[preset].settings.get("recipe") == "joint":
        raise InputError(
            f"--methods fine-tunes a backbone before anything else is trained, but preset {preset!r} trains "
            "all together: leave the preset out."
        )
    everything, unsuitable = ALL in names, dict[str, str]()
    datasets = [open_dataset(data, **dict(plan.options)) for data in plan.data]
    names = [*list_methods(), SWAD] if everything else names
    for name in names:
        try:
            for dataset in datasets:
                _check(name, plan, dataset)
        except InputError as error:
            if not everything or name in (ERM, SWAD) or isinstance(error, NoBackbone):
                raise
            unsuitable[name] = str(error)
    return [name for name in names if name not in unsuitable], unsuitable


def _check(name: str, plan: Plan, dataset: DomainDataset) -> None:
    if dataset.kind == "features":
        raise InputError("--methods trains a backbone, but the data holds features: leave it out.")
    method, training = FINETUNE_METHODS[ERM if name == SWAD else name], _training_by(name, plan)
    settings = training.fit_settings(dataset.kind)
    left = [len(set(dataset.domain_names) - set(left_out)) for left_out in leave_out(dataset, plan.targets)]
    for sources in left:
        method.needs.check(name, dataset.kind, sources, settings.finetune)
    if left and method.needs.backbone:
        try:
            backbone = make_backbone(dataset, training.spec, training.weights, settings, True, 0)
        except InputError as error:
            raise NoBackbone(str(error)) from None
        assert backbone is not None
        method(settings.finetune, backbone, min(left), len(dataset.classes))  # refuses what it cannot use


def _training_by(name: str, plan: Plan) -> Training:
    return replace(plan.training, settings=layer_of(name) | plan.training.settings)


def bench_methods(
    plan: Plan,
    names: Sequence[str],
    out: str | Path,
    *,
    engine: str = "local",
    workers: int = 1,
    on_run: OnRun | None = None,
    on_results: OnResults | None = None,
    cost: bool = True,
) -> dict[str, Any]:
    """Run a plan for each training method and return the grid, ready for JSON.

    Args:
        plan: what each of them is evaluated by; its training has no method.
        names: of `training_methods`.
        out: folder; runs found there are not computed again.
        engine, workers, on_run, on_results: see `bench`.
        cost: measure an iteration of each method when the runs are there; without it, what is known from an
            earlier measurement stays.
    """
    check_engine(engine)
    if (Path(out) / "bench.json").exists():
        raise InputError(f"'{out}' holds results of a bench without --methods. Name another folder.")
    names, unsuitable = check_methods(plan, names)
    prepared = {}
    for name in names:
        own = replace(plan, training=_training_by(name, plan))
        prepared[name] = prepare(own, Path(out) / "methods" / name)
    trained_by = {
        job.run_key(target, method): name
        for name, own in prepared.items()
        for job in own.jobs
        for target, method in job.pairs()
    }
    tell = None if on_run is None else lambda run: on_run(run | {"trained_by": trained_by[run["key"]]})
    of = measured_by(prepared[names[0]], plan)
    results = partial(_results, plan, prepared, unsuitable)
    so_far = Regularly(on_results, lambda: results(known_costs(Path(out), of)))
    run_all([*prepared.values()], engine, workers, tell, so_far)
    if not cost:
        return results(known_costs(Path(out), of))
    trainings = {name: _training_by(name, plan) for name in dict.fromkeys([ERM, *names])}
    dataset = next(iter(prepared[names[0]].named.values()))
    return results(keep_costs(Path(out), of, training_cost(plan, trainings, dataset)))


def _results(
    plan: Plan, prepared: dict[str, Prepared], unsuitable: dict[str, str], cost: Costs
) -> dict[str, Any]:
    """Return the grid of the runs that are there."""
    found = {name: own.results() for name, own in prepared.items()}
    about = {row["name"]: row for row in methods_table()}
    about[SWAD] = about[ERM] | {"name": SWAD, "about": SWAD_ABOUT}
    first = ERM if ERM in prepared else next(iter(prepared))
    targets = {target for job in prepared[first].jobs for target, _ in job.pairs()}
    entries = [
        {
            **about[name],
            "settings": layer_of(name),
            "cost": cost.get(name),
            "validation": _validation(own),
            "against": _against(own, prepared[first]),
            "published": published_beside(name, targets),
            **{key: found[name][key] for key in ("table", "failed", "unfinished")},
        }
        for name, own in prepared.items()
    ]
    shared = ("format", "settings", "seeds", "selection", "versions", "classes", "plus_minus")
    return {
        "kind": "grid",
        **{key: next(iter(found.values()))[key] for key in shared},
        "reference": first,
        "methods": entries,
        "published": {method.name: published_beside(method.name, targets) for method in plan.methods},
        "not_applicable": unsuitable,
    }


def _validation(own: Prepared) -> float | None:
    """Return the accuracy on source validation without adaptation, the mean over trainings: by it, and not by
    the targets, a training method may be chosen."""
    found = [run["numbers"]["validation"] for run in own.runs() if run["method"] == NONE]
    return float(np.mean(found)) if found else None


def _against(own: Prepared, reference: Prepared) -> dict[str, float] | None:
    """Return the difference without adaptation to the reference method, with its 95 % interval."""
    labels, sides = own.labels(), []
    for part in (own, reference):
        runs = [run for run in part.runs() if run["method"] == NONE]
        sides.append({(run["data"], run["target"], run["seed"]): run["numbers"]["predicted"] for run in runs})
    by_target: dict[Any, list[np.ndarray]] = {}
    for (data, target, seed), predicted in sides[0].items():
        if (data, target, seed) in sides[1]:
            label, other = labels[data, target], sides[1][data, target, seed]
            change = (np.asarray(predicted) == label).astype(int) - (np.asarray(other) == label)
            by_target.setdefault((data, target), []).append(change)
    if not by_target or own is reference:
        return None
    changes = [np.stack(found) for found in by_target.values()]
    low, high = paired_interval(changes)
    return {"gain": float(np.mean([c.mean() for c in changes])), "gain_low": low, "gain_high": high}
