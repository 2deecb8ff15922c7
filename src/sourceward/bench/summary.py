"""From cells to a table: mean and spread over seeds, and how sure each difference is."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sourceward.adaptation import ADAPTERS
from sourceward.adaptation.base import adapter_traits
from sourceward.bench.selection import choose, families, key_of_selected, label_of, scores_of
from sourceward.bench.specs import CONTROLS, LINEAR, NONE, OURS, Spec
from sourceward.functional.bootstrap import interval, paired_draws, paired_interval

if TYPE_CHECKING:
    from sourceward.bench.jobs import Job
    from sourceward.bench.protocol import Plan

Place = tuple[str, str]
"""(data, target)."""

SLIM = ("accuracy", "energy_before", "energy_after", "lowered", "seconds")


def summarize(
    plan: "Plan",
    jobs: Sequence["Job"],
    cells: Mapping[str, dict[str, Any]],
    failed: Sequence[dict[str, Any]],
    labels: Mapping[Place, np.ndarray],
) -> dict[str, Any]:
    """`cells` for each training, `table` with a row for each contestant, `failed`, and what each +- means."""
    found = {
        (c["data"], tuple(c["left_out"]), c["target"], c["seed"], c["adapter"]): c for c in cells.values()
    }
    main = [job for job in jobs if not job.pretends]
    grid: dict[str, dict[Place, dict[int, dict[str, Any]]]] = {}
    chosen: dict[str, dict[str, str]] = {}
    for job in main:
        for target, specs in job.questions:
            place = (job.name, target)
            for spec in specs:
                cell = found.get((job.name, job.left_out, target, job.seed, spec.key))
                if cell is not None:
                    grid.setdefault(spec.key, {}).setdefault(place, {})[job.seed] = cell
            for family, candidates in families(plan.specs).items():
                picked = _select(plan, jobs, job, target, candidates, found)
                cell = found.get((job.name, job.left_out, target, job.seed, picked.key)) if picked else None
                if cell is not None and picked is not None:
                    key = key_of_selected(family, plan.selection)
                    grid.setdefault(key, {}).setdefault(place, {})[job.seed] = cell
                    chosen.setdefault(key, {})[f"{job.name}/{target}/{job.seed}"] = picked.key
    steps = [
        value
        for spec in plan.specs
        for name, value in spec.options
        if (spec.name, name) == (OURS, "num_steps")
    ]
    rows = [key for key in _ordered(plan, grid) if _shared(grid, key)]
    return {
        "steps": [0, *steps],
        "plus_minus": plus_minus(len(plan.seeds)),
        "table": [_row(key, plan, grid, labels, chosen) for key in rows],
        "cells": _cells(main, grid, labels),
        "failed": [
            {name: cell[name] for name in ("data", "target", "seed", "adapter")}
            | {"reason": cell["failed"]}
            | ({"unsuitable": True} if cell["unsuitable"] else {})
            for cell in failed
        ],
    }


def plus_minus(seeds: int) -> str:
    """What the spreads of the table mean."""
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
    plan: "Plan", jobs: Sequence["Job"], job: "Job", target: str, candidates: Sequence[Spec], found: Mapping
) -> Spec | None:
    if plan.selection == "last":
        return None
    scores = {}
    for spec in candidates:
        cell = found.get((job.name, job.left_out, target, job.seed, spec.key))
        pretend = [
            found.get((job.name, other.left_out, other.questions[0][0], job.seed, spec.key))
            for other in jobs
            if other.name == job.name and other.seed == job.seed and _is_pretend_of(other, job)
        ]
        scores[spec.key] = scores_of(plan.selection, cell, [c for c in pretend if c is not None])
    return choose(plan.selection, scores, candidates)


def _is_pretend_of(other: "Job", job: "Job") -> bool:
    return other.pretends and other.left_out[:-1] == job.left_out


def _ordered(plan: "Plan", grid: Mapping) -> list[str]:
    """Controls, no adaptation, contestants, each followed by its selected row."""
    controls = [spec.key for spec in plan.specs if spec.name in CONTROLS]
    keys = [*controls, *(spec.key for spec in plan.specs if spec.name not in CONTROLS)]
    for family in families(plan.specs):
        last = max(i for i, key in enumerate(keys) if key.split(":")[0] == family)
        keys.insert(last + 1, key_of_selected(family, plan.selection))
    return [key for key in keys if key in grid]


def _shared(grid: Mapping, key: str) -> bool:
    """Whether a contestant and no adaptation answered the same thing anywhere."""
    none = grid.get(NONE, {})
    return any(by_seed.keys() & none.get(place, {}).keys() for place, by_seed in grid[key].items())


def _row(
    key: str, plan: "Plan", grid: Mapping, labels: Mapping[Place, np.ndarray], chosen: Mapping
) -> dict[str, Any]:
    """One contestant: per target and in the mean, over the places that it and `none` both have."""
    places = {p: by_seed for p, by_seed in grid[key].items() if by_seed.keys() & grid[NONE].get(p, {}).keys()}
    targets: dict[str, Any] = {}
    changes, accuracy = [], []
    for place, by_seed in places.items():
        seeds = [seed for seed in by_seed if seed in grid[NONE][place]]
        pairs = [_pair(by_seed[seed], grid[NONE][place][seed], labels[place]) for seed in seeds]
        right, still = (np.stack(side) for side in zip(*pairs))
        change = right.astype(int) - still
        changes.append(change)
        accuracy.append(dict(zip(seeds, right.mean(1))))
        draws = paired_draws(change, np.random.default_rng(0))
        targets["/".join(place)] = {
            **over_seeds(right.mean(1)),
            "gain": float(change.mean()),
            **dict(zip(("gain_low", "gain_high"), interval(draws))),
            "saved": int((change > 0).sum()),
            "lost": int((change < 0).sum()),
        }
    common = [seed for seed in plan.seeds if all(seed in by_seed for by_seed in accuracy)]
    means = np.array([np.mean([by_seed[seed] for by_seed in accuracy]) for seed in common] or [np.nan])
    low, high = paired_interval(changes)
    name, _, _ = key.partition(":")
    costs = [cell["numbers"].get("ms_per_sample") for by in places.values() for cell in by.values()]
    costs = [ms for ms in costs if ms is not None]
    return {
        "adapter": key,
        "label": _label(key, plan),
        "oracle": name == "oracle",
        "control": name in CONTROLS,
        **({"traits": vars(adapter_traits(name))} if name in ADAPTERS else {}),
        **({"chosen": chosen[key]} if key in chosen else {}),
        **over_seeds(means),
        "gain": float(np.mean([change.mean() for change in changes])),
        "gain_low": low,
        "gain_high": high,
        "ms_per_sample": None if key in chosen or not costs else float(np.median(costs)),
        "targets": targets,
    }


def _label(key: str, plan: "Plan") -> str:
    name, _, family = key.partition(":")
    if name in ("selected", "oracle"):
        return label_of(family, plan.selection, plan.specs)
    return next(spec.label for spec in plan.specs if spec.key == key)


def _cells(jobs: Sequence["Job"], grid: Mapping, labels: Mapping[Place, np.ndarray]) -> list[dict[str, Any]]:
    """One entry for each (data, target, seed), with every contestant's numbers."""
    entries = []
    for job in jobs:
        for target, _ in job.questions:
            place = (job.name, target)
            own = {key: grid[key][place][job.seed] for key in grid if job.seed in grid[key].get(place, {})}
            own = {key: cell for key, cell in own.items() if not key.startswith(("selected:", "oracle:"))}
            if NONE not in own:
                continue
            adapters = {key: _numbers(cell, own[NONE], labels[place]) for key, cell in own.items()}
            by_steps = {
                str(dict(spec_options(key)).get("num_steps", 0)): {
                    name: numbers[name]
                    for name in (*SLIM, "gain", "gain_low", "gain_high")
                    if name in numbers
                }
                for key, numbers in adapters.items()
                if key == NONE or (key.startswith(f"{OURS}:num_steps=") and key.count(":") == 1)
            }
            linear = {"linear": adapters[LINEAR]["accuracy"]} if LINEAR in adapters else {}
            entries.append(
                {
                    "data": job.name,
                    "target": target,
                    "seed": job.seed,
                    **linear,
                    "target_rows": len(labels[place]),
                    **own[NONE]["training"],
                    "by_steps": by_steps,
                    "adapters": adapters,
                }
            )
    return entries


def spec_options(key: str) -> list[tuple[str, Any]]:
    """Of a spec's key.

    >>> spec_options("ebtsa:num_steps=10")
    [('num_steps', '10')]
    """
    return [tuple(part.split("=", 1)) for part in key.split(":")[1:]]  # type: ignore[misc]


def _numbers(cell: dict[str, Any], none: dict[str, Any], label: np.ndarray) -> dict[str, Any]:
    numbers = {name: value for name, value in cell["numbers"].items() if name not in ("predicted", "rows")}
    if "rows" in cell["numbers"]:
        numbers["rows"] = len(cell["numbers"]["rows"])
    right, still = _pair(cell, none, label)
    change = right.astype(int) - still
    low, high = interval(paired_draws(change, np.random.default_rng(0)))
    gains = {"gain": float(change.mean()), "gain_low": low, "gain_high": high}
    counts = {"saved": int((change > 0).sum()), "lost": int((change < 0).sum()), "cell": cell["key"]}
    return numbers | gains | counts


def _pair(cell: dict[str, Any], none: dict[str, Any], label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether a contestant was right and whether no adaptation was, on the rows that the contestant met."""
    rows = cell["numbers"].get("rows", slice(None))
    right = np.asarray(cell["numbers"]["predicted"]) == label[rows]
    return right, (np.asarray(none["numbers"]["predicted"]) == label)[rows]


def over_seeds(values: np.ndarray) -> dict[str, Any]:
    """Mean and standard deviation over seeds; None where there is one."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "std": std}
