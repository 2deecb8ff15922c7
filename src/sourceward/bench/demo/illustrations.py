"""What the demo's page shows beside its numbers, as plain data: maps of the targets and single samples."""

from typing import Any

import numpy as np

from sourceward.bench.demo.experiment import Demo, Target, adapt
from sourceward.bench.experiments.maps import CLOUD, SHOWN, map_limits

CARDS = 3
"""Samples of each kind and target."""


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
