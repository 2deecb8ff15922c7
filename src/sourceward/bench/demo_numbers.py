"""The demo's numbers: from answers to accuracies, an interval, and sentences that say what they show."""

from typing import Any

import numpy as np

from sourceward.adaptation import AdaptationResult
from sourceward.bench.demo import WHOLE, Demo, Target

RESAMPLES = 2000
OURS = {"without adaptation": "without", "with adaptation": "with"}


def summarize(demo: Demo) -> dict[str, Any]:
    """Every number of the report, ready for JSON. Accuracies and gains are in per cent and points."""
    targets = {str(target.angle): _target(demo, target) for target in demo.targets}
    before = np.stack([t.right(t.before) for t in demo.targets])
    after = np.stack([t.right(t.after) for t in demo.targets])
    mean: dict[str, Any] = {
        key: float(np.mean([t[key] for t in targets.values()]))
        for key in ("without", "with", "gain", "energy_before", "energy_after", "energy_lowered")
    }
    mean["gain_interval"] = bootstrap(after.astype(float) - before, demo.settings.seed)
    names = next(iter(targets.values()))["controls"]
    mean["controls"] = {
        name: float(np.mean([t["controls"][name] for t in targets.values()])) for name in names
    }
    curve = {
        "steps": list(demo.targets[0].curve),
        "accuracy": {str(t.angle): [100 * a for a, _ in t.curve.values()] for t in demo.targets},
        "energy": {str(t.angle): [e for _, e in t.curve.values()] for t in demo.targets},
    }
    samples = before.size
    return {
        "headline": headline(mean, samples, demo.settings.num_steps),
        "verdicts": verdicts(mean, targets),
        "samples": samples,
        "mean": mean,
        "targets": targets,
        "curve": curve,
    }


def bootstrap(gain: np.ndarray, seed: int) -> list[float]:
    """95 % interval of the mean gain in points, resampling digits; `gain` is (targets, digits).

    A digit is drawn together with its turns at every angle, since they are not independent.

    >>> bootstrap(np.zeros((2, 10)), 0)
    [0.0, 0.0]
    """
    per_digit = 100 * gain.mean(0)
    rows = np.random.default_rng(seed).integers(len(per_digit), size=(RESAMPLES, len(per_digit)))
    low, high = np.percentile(per_digit[rows].mean(1), [2.5, 97.5])
    return [float(low), float(high)]


def headline(mean: dict[str, Any], samples: int, num_steps: int) -> str:
    """Does it help, by how much, how sure."""
    low, high = mean["gain_interval"]
    says = (
        "Adaptation helps"
        if low > 0
        else "Adaptation hurts"
        if high < 0
        else "Adaptation makes no clear difference"
    )
    return (
        f"{says}: {mean['without']:.1f} % becomes {mean['with']:.1f} % on angles never seen "
        f"({mean['gain']:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}; "
        f"{samples:,} images, {num_steps} steps)."
    )


def verdicts(mean: dict[str, Any], targets: dict[str, Any]) -> list[str]:
    """What the controls say, in one sentence each."""
    frozen = {name: value for name, value in mean["controls"].items() if name != WHOLE}
    best = max(frozen, key=lambda name: frozen[name])
    ahead, whole = mean["with"] - frozen[best], mean["controls"][WHOLE]
    order = f"{abs(ahead):.1f} points {'ahead of' if ahead > 0 else 'behind'}"
    order = "level with" if order.startswith("0.0 ") else order
    advice = "where you can retrain, do that" if whole > mean["with"] else "no better than adaptation here"
    changes = ", ".join(f"{t['gain']:+.1f} at {angle}°" for angle, t in targets.items())
    return [
        f"On the same frozen features adaptation is {order} the best control ({best}, {frozen[best]:.1f} %).",
        f"Retraining the whole network on all sources gives {whole:.1f} %: {advice}.",
        f"By target: {changes}. The energy of {mean['energy_lowered']:.0f} % of samples fell.",
    ]


def accuracy_rows(results: dict[str, Any]) -> list[tuple[str, list[float], float]]:
    """(model, accuracy per target, mean) of adaptation and of every control, for any kind of table."""
    targets, mean = results["targets"].values(), results["mean"]
    rows = [(name, [t[key] for t in targets], mean[key]) for name, key in OURS.items()]
    for name, value in mean["controls"].items():
        rows.append((f"control: {name}", [t["controls"][name] for t in targets], value))
    return rows


def _target(demo: Demo, target: Target) -> dict[str, Any]:
    before, after = target.right(target.before), target.right(target.after)
    lowered = target.after.energy_after.mean(1) < target.after.energy_before.mean(1)
    return {
        "without": _percent(before),
        "with": _percent(after),
        "gain": _percent(after) - _percent(before),
        "gain_interval": bootstrap((after.astype(float) - before)[None], demo.settings.seed),
        "repaired": int((after & ~before).sum()),
        "broken": int((before & ~after).sum()),
        "energy_before": float(target.after.energy_before.mean()),
        "energy_after": float(target.after.energy_after.mean()),
        "energy_lowered": _percent(lowered),
        "controls": {name: _percent(said == target.label) for name, said in target.controls.items()},
        "per_source": {
            str(name): {
                "without": _own_vote(target, target.before, number),
                "with": _own_vote(target, target.after, number),
                "energy_before": float(target.after.energy_before[:, number].mean()),
                "energy_after": float(target.after.energy_after[:, number].mean()),
            }
            for number, name in enumerate(demo.estimator.sources_)
        },
    }


def _own_vote(target: Target, adapted: AdaptationResult, number: int) -> float:
    return _percent(adapted.per_source[:, number].argmax(1) == target.label)


def _percent(right: np.ndarray) -> float:
    return 100 * float(right.mean())
