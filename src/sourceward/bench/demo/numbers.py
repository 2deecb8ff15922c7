"""What the demo's page shows, as plain data: numbers and sentences, maps of the targets, single samples."""

from typing import Any

import numpy as np

from sourceward.adaptation import AdaptationResult
from sourceward.bench.demo.experiment import WHOLE, Demo, Target, adapt
from sourceward.bench.experiments.maps import CLOUD, SHOWN, map_limits

RESAMPLES = 2000
CARDS = 3
"""Samples of each kind and target."""


def summarize(demo: Demo) -> dict[str, Any]:
    """Return every number of the report, ready for JSON; accuracies in per cent, gains in points."""
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
    """Return the 95 % interval of the mean gain in points, resampling digits; `gain` is (targets, digits).

    A digit is drawn together with its rotations to every angle, since they are not independent.

    >>> bootstrap(np.zeros((2, 10)), 0)
    [0.0, 0.0]
    """
    per_digit = 100 * gain.mean(0)
    rows = np.random.default_rng(seed).integers(len(per_digit), size=(RESAMPLES, len(per_digit)))
    low, high = np.percentile(per_digit[rows].mean(1), [2.5, 97.5])
    return [float(low), float(high)]


def headline(mean: dict[str, Any], samples: int, num_steps: int) -> str:
    """Return one sentence: whether adaptation helps, by how much, with its interval."""
    low, high = mean["gain_interval"]
    says = (
        "Adaptation helps"
        if low > 0
        else "Adaptation hurts"
        if high < 0
        else "Adaptation makes no clear difference"
    )
    return (
        f"{says}: {mean['without']:.1f} % becomes {mean['with']:.1f} % on unseen angles "
        f"({mean['gain']:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}; "
        f"{samples:,} images, {num_steps} steps)."
    )


def verdicts(mean: dict[str, Any], targets: dict[str, Any]) -> list[str]:
    """Return the comparison with the controls, in one sentence each."""
    frozen = {name: value for name, value in mean["controls"].items() if name != WHOLE}
    best = max(frozen, key=lambda name: frozen[name])
    ahead, whole = mean["with"] - frozen[best], mean["controls"][WHOLE]
    order = f"{abs(ahead):.1f} points {'ahead of' if ahead > 0 else 'behind'}"
    order = "level with" if order.startswith("0.0 ") else order
    advice = "retrain where you can" if whole > mean["with"] else "no better than adaptation here"
    changes = ", ".join(f"{t['gain']:+.1f} at {angle}°" for angle, t in targets.items())
    return [
        f"On the same frozen features adaptation is {order} the best control ({best}, {frozen[best]:.1f} %).",
        f"Retraining the whole network on all sources gives {whole:.1f} %: {advice}.",
        f"By target: {changes}. The energy of {mean['energy_lowered']:.0f} % of samples fell.",
    ]


def _target(demo: Demo, target: Target) -> dict[str, Any]:
    before, after = target.right(target.before), target.right(target.after)
    lowered = target.after.energy_after.mean(1) < target.after.energy_before.mean(1)
    return {
        "without": _percent(before),
        "with": _percent(after),
        "gain": _percent(after) - _percent(before),
        "gain_interval": bootstrap((after.astype(float) - before)[None], demo.settings.seed),
        "saved": int((after & ~before).sum()),
        "lost": int((before & ~after).sum()),
        "energy_before": float(target.after.energy_before.mean()),
        "energy_after": float(target.after.energy_after.mean()),
        "energy_lowered": _percent(lowered),
        "controls": {
            name: _percent(predicted == target.label) for name, predicted in target.controls.items()
        },
        "per_source": {
            str(name): {
                "without": _own_accuracy(target, target.before, number),
                "with": _own_accuracy(target, target.after, number),
                "energy_before": float(target.after.energy_before[:, number].mean()),
                "energy_after": float(target.after.energy_after[:, number].mean()),
            }
            for number, name in enumerate(demo.estimator.sources_)
        },
    }


def _own_accuracy(target: Target, adapted: AdaptationResult, number: int) -> float:
    return _percent(adapted.per_source[:, number].argmax(1) == target.label)


def _percent(right: np.ndarray) -> float:
    return 100 * float(right.mean())


def illustrate(demo: Demo) -> dict[str, Any]:
    """Return `maps`, two panels for each target, and the cards of `saved` and `lost` samples."""
    return {
        "maps": {target.angle: map_panels(demo, target) for target in demo.targets},
        "saved": [card for target in demo.targets for card in _cards(demo, target, saved=True)],
        "lost": [card for target in demo.targets for card in _cards(demo, target, saved=False)],
    }


def map_panels(demo: Demo, target: Target) -> list[dict[str, Any]]:
    """Return the maps before and after adaptation, on one scale: principal components of the sources."""
    from sklearn.decomposition import PCA

    pca = PCA(2, random_state=0).fit(demo.source_feature)
    cloud = pca.transform(demo.source_feature[:: max(len(demo.source_feature) // CLOUD, 1)])
    ends = {
        "before": (pca.transform(target.feature), target.right(target.before)),
        "after": (pca.transform(target.after.features.mean(1)), target.right(target.after)),
    }
    limits = map_limits(cloud, *(points for points, _ in ends.values()))
    return [
        {
            "plot": "map",
            "sources": cloud,
            "points": points[:SHOWN],
            "right": right[:SHOWN],
            "title": f"{target.angle}°, {name}: {100 * right.mean():.0f} % right",
            "limits": limits,
        }
        for name, (points, right) in ends.items()
    ]


def _cards(demo: Demo, target: Target, saved: bool) -> list[dict[str, Any]]:
    """Return the samples with the largest changes of the true class's probability."""
    before, after = target.right(target.before), target.right(target.after)
    picked = np.flatnonzero(after & ~before if saved else before & ~after)
    rise = (target.after.probabilities - target.before.probabilities)[picked, target.label[picked]]
    picked = picked[np.argsort(-rise if saved else rise)[:CARDS]]
    if not len(picked):
        return []
    steps = range(demo.settings.num_steps + 1)
    chain = [adapt(demo.estimator, target.feature[picked], number) for number in steps]
    cards = []
    for i, row in enumerate(picked.tolist()):
        true, angle = target.label[row], target.angle
        first, last = (result.probabilities[i].argmax() for result in (chain[0], chain[-1]))
        probability = np.array([result.probabilities[i, true] for result in chain])
        energy = np.array([result.energy_after[i].mean() for result in chain])
        cards.append(
            {
                "image": target.image[row],
                "title": f"A {true} at {angle}°: predicted {first}, then {last}",
                "text": f"p({true}) {_change(probability)}; energy {_change(energy)}",
                "name": f"probability of {true} and energy, sample {row} at {angle}°",
                "probability": probability,
                "energy": energy,
            }
        )
    return cards


def _change(values: np.ndarray) -> str:
    return f"{values[0]:.2f} to {values[-1]:.2f}"
