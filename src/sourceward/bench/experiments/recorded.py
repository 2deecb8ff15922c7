"""The decision over domains on recorded benches: its prior, what it switches on, and what that gains.

    python -m sourceward.bench.experiments.recorded results --out results/domains/results.json

Bench files record the gain on every held-out source. How far those differ, in all files together, is the
prior of `validation.expected_gain`. The noise of single held-out sources is not recorded and does not count
here. Accuracies without adaptation are recorded for targets alone; they check the interval of expected
accuracy.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.storage import write_whole
from sourceward._util.values import read_json
from sourceward.bench.protocol.provenance import versions
from sourceward.validation.expected_gain import (
    ACCURACY_PRIOR,
    PRIOR_DOF,
    PRIOR_SD,
    accuracy_interval,
    domain_interval,
    gain_of_changes,
)

AUTO = "ebtsa:num_steps=auto"


def recorded_runs(root: Path) -> list[dict[str, Any]]:
    """Return every run that records gains on held-out sources, with the measured gain of the default."""
    found = []
    for file in sorted(root.glob("**/results.json")):
        content = read_json(file)
        for run in content.get("runs", []) if content.get("kind") == "bench" else []:
            gain, methods = run.get("expected_gain"), run["methods"]
            if not gain or gain.get("seen") or isinstance(gain.get("tta"), dict):
                continue  # estimated on corrupted or rotated samples of the sources, not on held-out sources
            measured = methods[AUTO]["accuracy"] - methods["none"]["accuracy"] if AUTO in methods else None
            where = {"file": str(file.parent), "data": run["data"], "target": run["target"]}
            known = {"per_source": gain["per_source"], "adapts": gain["adapts"], "tta": gain.get("tta")}
            share = methods.get(AUTO, {}).get("changed")
            here = {"changed": gain.get("changed"), "changed_here": share, "rows": run["target_rows"]}
            found.append(where | {"seed": run["seed"], **known, "measured": measured, **here})
    return found


def fit_prior(gains: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return degrees of freedom and scale of the variance between domains, by maximum likelihood."""
    from scipy.optimize import minimize
    from scipy.stats import f

    def loss(parameters: np.ndarray) -> float:
        dof, scale = np.exp(parameters)
        ratios = ((own.var(ddof=1) / scale**2, len(own) - 1) for own in gains)
        return -sum(f.logpdf(ratio, degrees, dof) - 2 * np.log(scale) for ratio, degrees in ratios)

    dof, scale = np.exp(minimize(loss, np.log([2.0, 0.01]), method="Nelder-Mead").x)
    return float(dof), float(scale)


def sets_of(runs: Iterable[dict[str, Any]]) -> list[np.ndarray]:
    """Return the gains on each set of held-out sources in each file, averaged over seeds."""
    found: dict[Any, list[list[float]]] = {}
    for run in runs:
        key = run["file"], run["data"], tuple(run["per_source"])
        found.setdefault(key, []).append(list(run["per_source"].values()))
    return [np.mean(gains, axis=0) for gains in found.values()]


def accuracy_sets(root: Path) -> dict[str, np.ndarray]:
    """Return the accuracy without adaptation on each target of a bench, its domains left out in turn."""
    found: dict[str, dict[str, list[float]]] = {}
    for file in sorted(root.glob("**/results.json")):
        content = read_json(file)
        for run in content.get("runs", []) if content.get("kind") == "bench" else []:
            if "none" in run["methods"]:
                key = f"{file.parent}: {run['data'].rsplit('_without_', 1)[0]}"
                own = found.setdefault(key, {}).setdefault(run["target"], [])
                own.append(run["methods"]["none"]["accuracy"])
    return {
        key: np.array([np.mean(values) for values in own.values()])
        for key, own in found.items()
        if len(own) > 3
    }


def check_accuracy(sets: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return how often the interval of the accuracy holds a target, given those on three other targets; every
    bench counts the same."""
    holds, width = {}, []
    for key, own in sets.items():
        inside = []
        for place in range(len(own)):
            for chosen in list(combinations(np.delete(own, place), 3))[:20]:
                low, high = accuracy_interval(np.array(chosen))
                inside.append(low <= own[place] <= high)
                width.append(high - low)
        holds[key] = float(np.mean(inside))
    return {
        "used": list(ACCURACY_PRIOR),
        "sd": {key: float(own.std(ddof=1)) for key, own in sets.items()},
        "median_sd": float(np.median([own.std(ddof=1) for own in sets.values()])),
        "holds": holds,
        "interval_holds": float(np.mean([*holds.values()])),
        "median_width": float(np.median(width)),
    }


def decide(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the rule does with the runs in which the default adapted and was measured."""
    rows = []
    for run in runs:
        if run["adapts"] and run["measured"] is not None:
            gains = np.array(list(run["per_source"].values()))
            low, high = domain_interval(gains, new=True)
            rows.append(
                run
                | {"expected": float(gains.mean()), "interval": [low, high]}
                | {"on": domain_interval(gains)[0] > 0, "inside": low <= run["measured"] <= high}
            )
    measured = np.array([row["measured"] for row in rows])
    got = np.where([row["on"] for row in rows], measured, 0.0)
    return {
        "runs": len(rows),
        "always_on": {"mean_gain": float(measured.mean()), "worst": float(measured.min())},
        "rule": {
            "on": float(np.mean([row["on"] for row in rows])),
            "mean_gain": float(got.mean()),
            "worst": float(got.min()),
        },
        "interval_holds": float(np.mean([row["inside"] for row in rows])),
        "expected_minus_measured": float(np.mean([abs(r["expected"] - r["measured"]) for r in rows])),
        "rows": rows,
    }


def with_unlabeled_rows(runs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return how far off the gain is that the share of changed labels lets expect, where it was recorded."""
    known = [run for run in runs if run["adapts"] and run["changed"] and run["changed_here"] is not None]
    if not known:
        return None
    measured, expected, found = np.array([run["measured"] for run in known]), [], []
    for run in known:
        gains, changed = (np.array([*run[key].values()]) for key in ("per_source", "changed"))
        expected.append(gains.mean())
        found.append(gain_of_changes(gains, np.maximum(changed, 1e-9), run["changed_here"], run["rows"]))
    gain, low, high = np.array(found).T
    return {
        "runs": len(known),
        "expected_minus_measured": float(np.abs(expected - measured).mean()),
        "estimated_minus_measured": float(np.abs(gain - measured).mean()),
        "interval_holds": float(((low <= measured) & (measured <= high)).mean()),
    }


def main() -> None:
    """Read benches below a folder, write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    runs = recorded_runs(given.root)
    sets = sets_of(runs)
    dof, scale = fit_prior(sets)
    numbers = {
        "command": f"python -m sourceward.bench.experiments.recorded {given.root} --out {given.out}",
        "versions": versions(),
        "prior": {"sets": len(sets), "dof": dof, "sd": scale, "used": [PRIOR_DOF, PRIOR_SD]},
        "decision": decide(runs),
        "with_unlabeled_rows": with_unlabeled_rows(runs),
        "accuracy": check_accuracy(accuracy_sets(given.root)),
    }
    write_whole(given.out, json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
