"""From runs to a table: mean and spread over seeds, and an interval for each difference."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sourceward.adaptation import ADAPTERS
from sourceward.adaptation.base import adapter_traits
from sourceward.bench.protocol.methods import CONTROLS, EBTSA, LINEAR, NONE, Method
from sourceward.functional.metrics import interval, paired_draws, paired_interval

if TYPE_CHECKING:
    from sourceward.bench.protocol.jobs import Job
    from sourceward.bench.protocol.plan import Plan

DataTarget = tuple[str, str]
Run = dict[str, Any]
Grid = dict[str, dict[DataTarget, dict[int, Run]]]
"""Runs by method, (data, target) and seed."""

SELECTIONS = {
    "source": "accuracy on validation rows of the sources",
    "last": "none: the last iteration, every setting as given",
    "oracle": "ORACLE: accuracy on the target itself, an upper bound and never a result",
}
"""How the table chooses among several settings of one method."""


def summarize(
    plan: "Plan",
    jobs: Sequence["Job"],
    runs: Sequence[Run],
    failed: Sequence[Run],
    labels: Mapping[DataTarget, np.ndarray],
) -> dict[str, Any]:
    """Return `table` with a row for each method, `runs` with an entry for each (data, target, seed),
    `failed`, and the meaning of each interval."""
    grid: Grid = {}
    for run in runs:
        here = (run["data"], run["target"])
        grid.setdefault(run["method"], {}).setdefault(here, {})[run["seed"]] = run
    chosen = _select(plan, jobs, grid)
    steps = [m.own["num_steps"] for m in plan.methods if m.name == EBTSA and "num_steps" in m.own]
    names = ("data", "target", "seed", "method")
    return {
        "steps": [0, *steps],
        "plus_minus": plus_minus(len(plan.seeds)),
        "table": [_row(key, plan, grid, labels, chosen) for key in _rows(plan, grid)],
        "runs": _entries(jobs, grid, labels),
        "failed": [
            {name: run[name] for name in names}
            | {"reason": run["failed"]}
            | ({"unsuitable": True} if run["unsuitable"] else {})
            for run in failed
        ],
    }


def plus_minus(seeds: int) -> str:
    """Return the meaning of the table's spreads."""
    if seeds == 1:
        return (
            "Accuracy is of one seed. Differences to no adaptation: 95 % paired bootstrap interval over "
            "samples; it does not cover the randomness of training."
        )
    return (
        f"a ± b: mean and standard deviation over {seeds} seeds. Differences to no adaptation: 95 % paired "
        "bootstrap interval over samples and seeds."
    )


def families(methods: Sequence[Method]) -> dict[str, list[Method]]:
    """Return the candidates of each adapter that has several settings; no adaptation is one of `ebtsa`.

    A method that is evaluated on some rows of a target is none: its score would be that of other samples.

    >>> methods = [Method("none"), Method("ebtsa", (("num_steps", 5),)), Method("t3a")]
    >>> {name: [m.key for m in candidates] for name, candidates in families(methods).items()}
    {'ebtsa': ['none', 'ebtsa:num_steps=5']}
    """
    found: dict[str, list[Method]] = {}
    for method in methods:
        if method.name != NONE and method.max_rows is None and not method.auto:  # auto chooses by itself
            found.setdefault(method.name, [Method(NONE)] if method.name == EBTSA else []).append(method)
    return {name: candidates for name, candidates in found.items() if len(candidates) > 1}


def _select(plan: "Plan", jobs: Sequence["Job"], grid: Grid) -> dict[str, dict[str, str]]:
    """Add to the grid, for each family, the candidate with the best score; of equals the first.

    Returns its key in each run, by the key of the selected row.
    """
    score = {"source": "validation", "oracle": "accuracy"}.get(plan.selection)
    chosen: dict[str, dict[str, str]] = {}
    for job in jobs if score else ():
        for target, _ in job.evaluations:
            at = (job.name, target)
            for family, candidates in families(plan.methods).items():
                runs = [grid.get(method.key, {}).get(at, {}).get(job.seed) for method in candidates]
                known = [run for run in runs if run is not None and run["numbers"].get(score) is not None]
                if known:
                    best = max(known, key=lambda run: run["numbers"][score])
                    key = _selected_key(family, plan.selection)
                    grid.setdefault(key, {}).setdefault(at, {})[job.seed] = best
                    chosen.setdefault(key, {})[f"{job.name}/{target}/{job.seed}"] = best["method"]
    return chosen


def _selected_key(family: str, selection: str) -> str:
    return f"oracle:{family}" if selection == "oracle" else f"selected:{family}"


def _selected_label(family: str, plan: "Plan") -> str:
    """Return the label of a selected row; an oracle's begins with ORACLE."""
    oracle = plan.selection == "oracle"
    label = f"ORACLE {family}, best on the target" if oracle else f"{family}, chosen by source validation"
    some = any(method.name == family and method.max_rows is not None for method in plan.methods)
    return f"{label} among those without rows=" if some else label


def _rows(plan: "Plan", grid: Grid) -> list[str]:
    """Return the keys of the table's rows: controls, no adaptation, methods, each followed by its selected
    row; those that share a training with no adaptation."""
    keys = sorted((m.key for m in plan.methods), key=lambda key: key not in CONTROLS)
    for family in families(plan.methods):
        last = max(i for i, key in enumerate(keys) if key.split(":")[0] == family)
        keys.insert(last + 1, _selected_key(family, plan.selection))
    none = grid.get(NONE, {})
    return [
        key
        for key in keys
        if any(by_seed.keys() & none.get(at, {}).keys() for at, by_seed in grid.get(key, {}).items())
    ]


def _row(
    key: str, plan: "Plan", grid: Grid, labels: Mapping[DataTarget, np.ndarray], chosen: Mapping
) -> dict[str, Any]:
    """Return one method's numbers, per target and in the mean, where both it and `none` have runs."""
    none = grid[NONE]
    shared = {at: by_seed for at, by_seed in grid[key].items() if by_seed.keys() & none.get(at, {}).keys()}
    targets: dict[str, Any] = {}
    changes, accuracy = [], []
    for at, by_seed in shared.items():
        seeds = [seed for seed in by_seed if seed in none[at]]
        pairs = [_right(by_seed[seed], none[at][seed], labels[at]) for seed in seeds]
        right, unadapted = (np.stack(side) for side in zip(*pairs))
        change = right.astype(int) - unadapted
        changes.append(change)
        accuracy.append(dict(zip(seeds, right.mean(1))))
        targets["/".join(at)] = over_seeds(right.mean(1)) | _gain(change)
    common = [seed for seed in plan.seeds if all(seed in by_seed for by_seed in accuracy)]
    means = [np.mean([by_seed[seed] for by_seed in accuracy]) for seed in common]
    if not common:  # so far, each target has runs of other seeds
        means = [np.mean([np.mean([*by_seed.values()]) for by_seed in accuracy])]
    low, high = paired_interval(changes)
    name, _, family = key.partition(":")
    selected = name in ("selected", "oracle")
    costs = [run["numbers"].get("ms_per_sample") for by in shared.values() for run in by.values()]
    costs = [ms for ms in costs if ms is not None]
    return {
        "method": key,
        "label": _selected_label(family, plan)
        if selected
        else next(method.label for method in plan.methods if method.key == key),
        "oracle": name == "oracle",
        "control": name in CONTROLS,
        **({"traits": vars(adapter_traits(name))} if name in ADAPTERS else {}),
        **({"chosen": chosen[key]} if key in chosen else {}),
        **over_seeds(np.array(means)),
        "gain": float(np.mean([change.mean() for change in changes])),
        "gain_low": low,
        "gain_high": high,
        "ms_per_sample": None if selected or not costs else float(np.median(costs)),
        "targets": targets,
    }


def _entries(
    jobs: Sequence["Job"], grid: Grid, labels: Mapping[DataTarget, np.ndarray]
) -> list[dict[str, Any]]:
    """Return one entry for each (data, target, seed), with the numbers of every method."""
    entries = []
    for job in jobs:
        for target, _ in job.evaluations:
            at = (job.name, target)
            own = {key: grid[key][at][job.seed] for key in grid if job.seed in grid[key].get(at, {})}
            own = {key: run for key, run in own.items() if not key.startswith(("selected:", "oracle:"))}
            if NONE not in own:
                continue
            methods = {key: _numbers(run, own[NONE], labels[at]) for key, run in own.items()}
            entries.append(
                {
                    "data": job.name,
                    "target": target,
                    "seed": job.seed,
                    **({"linear": methods[LINEAR]["accuracy"]} if LINEAR in methods else {}),
                    "target_rows": len(labels[at]),
                    **own[NONE]["training"],
                    "methods": methods,
                }
            )
    return entries


def _numbers(run: Run, none: Run, label: np.ndarray) -> dict[str, Any]:
    numbers = {name: value for name, value in run["numbers"].items() if name not in ("predicted", "rows")}
    if "rows" in run["numbers"]:
        numbers["rows"] = len(run["numbers"]["rows"])
    right, unadapted = _right(run, none, label)
    own, rows = run["numbers"], run["numbers"].get("rows", slice(None))
    changed = float((np.asarray(own["predicted"]) != np.asarray(none["numbers"]["predicted"])[rows]).mean())
    return numbers | _gain(right.astype(int) - unadapted) | {"changed": changed, "run": run["key"]}


def _gain(change: np.ndarray) -> dict[str, Any]:
    """Return the mean change with its interval, and how many samples are saved and lost."""
    low, high = interval(paired_draws(change, np.random.default_rng(0)))
    gain = {"gain": float(change.mean()), "gain_low": low, "gain_high": high}
    return gain | {"saved": int((change > 0).sum()), "lost": int((change < 0).sum())}


def _right(run: Run, none: Run, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether a method and no adaptation are right, on the rows that the method was evaluated on."""
    rows = run["numbers"].get("rows", slice(None))
    right = np.asarray(run["numbers"]["predicted"]) == label[rows]
    return right, (np.asarray(none["numbers"]["predicted"]) == label)[rows]


def over_seeds(values: np.ndarray) -> dict[str, Any]:
    """Return mean and standard deviation over seeds; a standard deviation of None for one seed."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "std": std}
