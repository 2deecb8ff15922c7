"""From runs to a table: mean and spread over seeds, and an interval for each difference."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sourceward.adaptation import ADAPTERS
from sourceward.adaptation.base import adapter_traits
from sourceward.bench.protocol.methods import CONTROLS, EBTSA, LINEAR, NONE, Method
from sourceward.bench.protocol.selection import choose, families, scores_of, selected_key, selected_label
from sourceward.functional.bootstrap import interval, paired_draws, paired_interval

if TYPE_CHECKING:
    from sourceward.bench.protocol.jobs import Job
    from sourceward.bench.protocol.plan import Plan

DataTarget = tuple[str, str]
Run = dict[str, Any]
Grid = dict[str, dict[DataTarget, dict[int, Run]]]
"""Runs by method, (data, target) and seed."""

BY_STEPS = (
    "accuracy",
    "energy_before",
    "energy_after",
    "lowered",
    "seconds",
    "gain",
    "gain_low",
    "gain_high",
)
"""Numbers that are also listed by number of steps."""


def summarize(
    plan: "Plan",
    jobs: Sequence["Job"],
    runs: Sequence[Run],
    failed: Sequence[Run],
    labels: Mapping[DataTarget, np.ndarray],
) -> dict[str, Any]:
    """Return `table` with a row for each method, `runs` with an entry for each (data, target, seed),
    `failed`, and the meaning of each interval."""
    found = {(r["data"], tuple(r["left_out"]), r["target"], r["seed"], r["method"]): r for r in runs}
    main = [job for job in jobs if not job.for_selection]
    grid: Grid = {}
    chosen: dict[str, dict[str, str]] = {}
    for job in main:
        for target, methods in job.evaluations:
            here = (job.name, target)
            at = (job.name, job.left_out, target, job.seed)
            for method in methods:
                if (run := found.get((*at, method.key))) is not None:
                    grid.setdefault(method.key, {}).setdefault(here, {})[job.seed] = run
            for family, candidates in families(plan.methods).items():
                picked = _select(plan, jobs, job, target, candidates, found)
                if picked is not None and (run := found.get((*at, picked.key))) is not None:
                    key = selected_key(family, plan.selection)
                    grid.setdefault(key, {}).setdefault(here, {})[job.seed] = run
                    chosen.setdefault(key, {})[f"{job.name}/{target}/{job.seed}"] = picked.key
    steps = [m.own["num_steps"] for m in plan.methods if m.name == EBTSA and "num_steps" in m.own]
    names = ("data", "target", "seed", "method")
    return {
        "steps": [0, *steps],
        "plus_minus": plus_minus(len(plan.seeds)),
        "table": [_row(key, plan, grid, labels, chosen) for key in _rows(plan, grid)],
        "runs": _entries(main, grid, labels),
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


def _select(
    plan: "Plan", jobs: Sequence["Job"], job: "Job", target: str, candidates: Sequence[Method], found: Mapping
) -> Method | None:
    """Return the candidate that the plan's selection chooses for one training and target."""
    if plan.selection == "last":
        return None
    held_out = [
        (job.name, other.left_out, other.evaluations[0][0], job.seed)
        for other in jobs
        if other.for_selection
        and (other.name, other.seed, other.left_out[:-1]) == (job.name, job.seed, job.left_out)
    ]
    scores = {}
    for method in candidates:
        run = found.get((job.name, job.left_out, target, job.seed, method.key))
        others = [found[(*at, method.key)] for at in held_out if (*at, method.key) in found]
        scores[method.key] = scores_of(plan.selection, run, others)
    return choose(scores, candidates)


def _rows(plan: "Plan", grid: Grid) -> list[str]:
    """Return the keys of the table's rows: controls, no adaptation, methods, each followed by its selected
    row; those that share a training with no adaptation."""
    keys = sorted((m.key for m in plan.methods), key=lambda key: key not in CONTROLS)
    for family in families(plan.methods):
        last = max(i for i, key in enumerate(keys) if key.split(":")[0] == family)
        keys.insert(last + 1, selected_key(family, plan.selection))
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
    means = np.array([np.mean([by_seed[seed] for by_seed in accuracy]) for seed in common] or [np.nan])
    low, high = paired_interval(changes)
    name, _, family = key.partition(":")
    selected = name in ("selected", "oracle")
    costs = [run["numbers"].get("ms_per_sample") for by in shared.values() for run in by.values()]
    costs = [ms for ms in costs if ms is not None]
    return {
        "method": key,
        "label": selected_label(family, plan.selection, plan.methods)
        if selected
        else next(method.label for method in plan.methods if method.key == key),
        "oracle": name == "oracle",
        "control": name in CONTROLS,
        **({"traits": vars(adapter_traits(name))} if name in ADAPTERS else {}),
        **({"chosen": chosen[key]} if key in chosen else {}),
        **over_seeds(means),
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
                    "by_steps": {
                        key.partition("=")[2] or "0": {k: v for k, v in n.items() if k in BY_STEPS}
                        for key, n in methods.items()
                        if key == NONE or (key.startswith(f"{EBTSA}:num_steps=") and key.count(":") == 1)
                    },
                    "methods": methods,
                }
            )
    return entries


def _numbers(run: Run, none: Run, label: np.ndarray) -> dict[str, Any]:
    numbers = {name: value for name, value in run["numbers"].items() if name not in ("predicted", "rows")}
    if "rows" in run["numbers"]:
        numbers["rows"] = len(run["numbers"]["rows"])
    right, unadapted = _right(run, none, label)
    return numbers | _gain(right.astype(int) - unadapted) | {"run": run["key"]}


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
