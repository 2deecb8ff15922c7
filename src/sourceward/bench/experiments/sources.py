"""Each source's own predictions before and after adaptation; and the ways to aggregate them."""

from typing import Any

import numpy as np
import torch

from sourceward._util.tables import Table, target_of
from sourceward.bench.experiments.base import OFF, Context, Drawing, Outcome, experiment
from sourceward.bench.experiments.scores import Scores
from sourceward.functional import AGGREGATIONS, oracle_source

UNLEARNED = [how for how in AGGREGATIONS if how != "learned"]
"""`learned` needs a training of its own."""

ORACLE = "ORACLE: best source for each sample"


@experiment(
    "per-source", "Accuracy and energy of each source's own predictions, before and after adaptation."
)
def per_source(context: Context) -> Outcome:
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for case in context.cases():
        before, after = (case.checkpoint.adapt(case.part, num_steps=k) for k in (0, context.num_steps))
        for i, source in enumerate(case.checkpoint.sources):
            right = [float(case.right(result.per_source[:, i]).mean()) for result in (before, after)]
            energies = (float(after.energy_before[:, i].mean()), float(after.energy_after[:, i].mean()))
            found.setdefault((case.where, source), []).append((*right, *energies))
    means = {key: np.mean(values, axis=0) for key, values in found.items()}
    rows: list[list[str]] = []
    groups: list[int] = []
    for (where, source), (b, a, e0, e1) in means.items():
        heading = [f"target {target_of(where)}"]
        if heading not in rows:
            groups.append(len(rows))
            rows.append(heading)
        shares = [f"{100 * b:.1f}", f"{100 * a:.1f}", f"{100 * (a - b):+.1f}"]
        rows.append([source, *shares, f"{e0:.3f}", f"{e1:.3f}"])
    header = ["source", "before, %", "after, %", "change", "energy before", "after"]
    caption = (
        f"Mean over {len(context.seeds)} seeds, {context.num_steps} steps. See which sources gain by their "
        "own chains."
    )
    names = ("before", "after", "energy_before", "energy_after")
    numbers = {f"{where}<-{source}": dict(zip(names, map(float, v))) for (where, source), v in means.items()}
    return Outcome([Table(header, rows, caption, groups=groups)], [_figure(means)], {"sources": numbers})


def _figure(means: dict[tuple[str, str], np.ndarray]) -> Drawing:
    values = 100 * np.array(list(means.values()))[:, :2]
    panel = {
        "plot": "pairs",
        "names": [f"{target_of(where)} by {source}" for where, source in means],
        "before": values[:, 0],
        "after": values[:, 1],
        "xlabel": "accuracy, %",
    }
    caption = (
        "Hollow: before. Filled: after. Blue gains, orange loses. A row is a target by one source alone."
    )
    return Drawing("per-source", caption, (6.5, 0.9 + 0.32 * len(means)), [panel])


@experiment(
    "aggregation", "The ways to aggregate the sources' predictions: mean, closest, cosine, and so on."
)
def aggregation(context: Context) -> Outcome:
    scores = Scores()
    for case in context.cases():
        rows: dict[str, dict[str, Any]] = {OFF: {"num_steps": 0}}
        rows |= {how: {"num_steps": context.num_steps, "aggregation": how} for how in UNLEARNED}
        for name, options in rows.items():
            result = case.checkpoint.adapt(case.part, **options)
            scores.add(name, case.where, case.seed, case.right(result.probabilities))
        label = torch.from_numpy(case.checkpoint.class_indices(case.part.label))
        best = oracle_source(torch.from_numpy(result.per_source).transpose(0, 1), label)
        scores.add(ORACLE, case.where, case.seed, case.right(best))
    against = dict.fromkeys(UNLEARNED, OFF)
    caption = (
        f"Accuracy, %, at {context.num_steps} steps. ORACLE uses the label: an upper bound, never a result."
    )
    return Outcome(
        [scores.table("accuracy, %", against, context.published("aggregation"), caption)],
        [scores.drawing("aggregation", against)],
        numbers={"rows": scores.numbers(against)},
    )
