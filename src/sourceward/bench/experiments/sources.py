"""Each source alone, before and after; and the ways of making one answer out of several."""

from typing import Any

import numpy as np
import torch

from sourceward.bench.experiments.base import Context, Drawing, Outcome, experiment
from sourceward.bench.experiments.scores import Scores
from sourceward.functional import AGGREGATIONS, oracle_source
from sourceward.report.page import Table
from sourceward.report.words import target_of

VOTES = [how for how in AGGREGATIONS if how != "learned"]
"""What has to be learned first is in `choices`."""


@experiment("per-source", "Accuracy and energy of each source's own answer, before and after adaptation.")
def per_source(context: Context) -> Outcome:
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for asked in context.checkpoints():
        before, after = (asked.checkpoint.run_chain(asked.part, num_steps=k) for k in (0, context.num_steps))
        for i, source in enumerate(asked.checkpoint.sources):
            right = [
                float((asked.checkpoint.codes[a.per_source[:, i].argmax(1)] == asked.part.label).mean())
                for a in (before, after)
            ]
            energies = (float(after.energy_before[:, i].mean()), float(after.energy_after[:, i].mean()))
            found.setdefault((asked.place, source), []).append((*right, *energies))
    means = {key: np.mean(values, axis=0) for key, values in found.items()}
    rows: list[list[str]] = []
    groups: list[int] = []
    for place in dict.fromkeys(place for place, _ in means):
        groups.append(len(rows))
        rows.append([f"target {target_of(place)}"])
        for (where, source), (b, a, e0, e1) in means.items():
            if where == place:
                rows.append(
                    [
                        source,
                        f"{100 * b:.1f}",
                        f"{100 * a:.1f}",
                        f"{100 * (a - b):+.1f}",
                        f"{e0:.3f}",
                        f"{e1:.3f}",
                    ]
                )
    header = ["source", "before, %", "after, %", "change", "energy before", "after"]
    caption = (
        f"Mean over {len(context.seeds)} seeds, {context.num_steps} steps. See which sources gain by "
        "moving samples to themselves."
    )
    numbers = {
        f"{place}<-{source}": dict(zip(("before", "after", "energy_before", "energy_after"), map(float, v)))
        for (place, source), v in means.items()
    }
    return Outcome([Table(header, rows, caption, groups=groups)], [_figure(means)], {"sources": numbers})


def _figure(means: dict) -> Drawing:
    from sourceward.report import figures

    names = [f"{target_of(place)} by {source}" for place, source in means]
    values = 100 * np.array(list(means.values()))[:, :2]

    def draw(figure: Any) -> None:
        figures.draw_pairs(figure.subplots(), names, values[:, 0], values[:, 1], xlabel="accuracy, %")

    caption = (
        "Hollow: before. Filled: after. Blue gains, orange loses. A row is a target as one source alone "
        "answers it."
    )
    return Drawing("per-source", caption, (6.5, 0.9 + 0.32 * len(names)), draw)


@experiment(
    "aggregation", "The ways to make one answer of the sources' answers: mean, closest, cosine, and so on."
)
def aggregation(context: Context) -> Outcome:
    scores, none, oracle = Scores(), "no adaptation", "ORACLE: best source for each sample"
    for asked in context.checkpoints():
        asks: dict[str, dict[str, Any]] = {none: {"num_steps": 0}}
        asks |= {how: {"num_steps": context.num_steps, "aggregation": how} for how in VOTES}
        for name, options in asks.items():
            answer = asked.checkpoint.run_chain(asked.part, **options)
            said = asked.checkpoint.codes[answer.probabilities.argmax(1)]
            scores.add(name, asked.place, asked.seed, said == asked.part.label)
        label = torch.from_numpy(asked.checkpoint.numbers(asked.part.label))
        best = oracle_source(torch.from_numpy(answer.per_source).transpose(0, 1), label).argmax(1).numpy()
        scores.add(oracle, asked.place, asked.seed, asked.checkpoint.codes[best] == asked.part.label)
    against = dict.fromkeys(VOTES, none)
    caption = (
        f"Accuracy, %, at {context.num_steps} steps. ORACLE looks at the label: an upper bound, never a "
        "result."
    )
    return Outcome(
        [scores.table("accuracy, %", against, context.published("aggregation"), caption)],
        [scores.drawing("aggregation", against)],
        numbers={"rows": scores.numbers(against)},
    )
