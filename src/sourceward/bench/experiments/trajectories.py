"""Single chains, step by step: samples that adaptation saved, and samples that it lost."""

from typing import Any

import numpy as np

from sourceward._util.tables import Table
from sourceward.bench.experiments.base import Case, Context, Drawing, Outcome, experiment
from sourceward.bench.experiments.maps import source_plane

SHOWN = 4
"""Chains of each kind in a figure."""


@experiment("trajectories", "Single chains on the map: samples that were saved, and samples that were lost.")
def trajectories(context: Context) -> Outcome:
    drawings, rows, numbers = [], [], {}
    for case in context.first_seed():
        saved, lost = saved_and_lost_rows(case, context.num_steps)
        numbers[case.where] = {"saved": len(saved), "lost": len(lost)}
        rows.append([case.target, f"{len(case.part.label):,}", f"{len(saved):,}", f"{len(lost):,}"])
        picked = np.concatenate([saved[:SHOWN], lost[:SHOWN]]).astype(int)
        if len(picked):
            good = [True] * len(saved[:SHOWN]) + [False] * len(lost[:SHOWN])
            drawings.append(_figure(case, picked, good, context.num_steps))
    caption = (
        "Saved: wrong before, right after. Lost: right before, wrong after. Figures: the largest changes."
    )
    table = Table(["target", "samples", "saved", "lost"], rows, caption)
    return Outcome([table], drawings, {"targets": numbers})


def saved_and_lost_rows(case: Case, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the saved and the lost rows, the largest changes of the true class's probability first."""
    before, after = (case.checkpoint.adapt(case.part, num_steps=k).probabilities for k in (0, num_steps))
    right = [case.right(p) for p in (before, after)]
    own = case.checkpoint.class_indices(case.part.label)
    change = (after - before)[np.arange(len(own)), own]
    saved, lost = np.flatnonzero(right[1] & ~right[0]), np.flatnonzero(right[0] & ~right[1])
    return saved[np.argsort(-change[saved])], lost[np.argsort(change[lost])]


def _figure(case: Case, picked: np.ndarray, good: list[bool], num_steps: int) -> Drawing:
    part, (clouds, project) = case.part.select(picked), source_plane(case)
    own = case.checkpoint.class_indices(part.label)
    results = [case.checkpoint.adapt(part, num_steps=k) for k in range(num_steps + 1)]
    points = np.stack([result.features for result in results])
    p_true = np.stack([result.probabilities[np.arange(len(own)), own] for result in results])
    energy = np.stack([result.energy_after.mean(1) for result in results])
    panels: list[dict[str, Any]] = [
        {
            "plot": "paths",
            "cloud": cloud,
            "paths": [project(points[:, i, source]) for i in range(len(picked))],
            "good": good,
            "title": f"chains to {name}",
        }
        for source, (name, cloud) in enumerate(clouds.items())
    ]
    panels += [
        {"plot": "traces", "values": p_true, "good": good, "ylabel": "p(true class)"},
        {"plot": "traces", "values": energy, "good": good, "ylabel": "mean energy"},
    ]
    caption = (
        f"Target {case.target}: the same samples on the way to each source. Blue, solid: saved. Orange, "
        "dashed: lost. The energy falls along both: a sample looks more like the sources, which does not "
        "mean that it kept its class. From step 1 on it also weights the sources, where `aggregation` is "
        "`energy`."
    )
    width = 3.6 * len(panels)
    return Drawing(f"trajectories-{case.name}-{case.target}", caption, (width, 3.4), panels)
