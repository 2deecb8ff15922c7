"""Every adapter on the same checkpoints, the published numbers beside."""

from typing import Any

from sourceward._util.errors import InputError
from sourceward.adaptation import list_adapters
from sourceward.bench.experiments.base import Context, Drawing, Outcome, experiment
from sourceward.bench.experiments.scores import quoted_row
from sourceward.bench.protocol import Plan, bench
from sourceward.bench.specs import CONTROLS, parse_specs
from sourceward.report.page import Table
from sourceward.report.words import asks_for, gain, short_names, spread


@experiment("comparison", "Every test-time adapter on the same checkpoints.")
def comparison(context: Context) -> Outcome:
    names = ["none", "ebtsa", "t3a"] if context.small else list_adapters()
    plan = Plan(
        context.data,
        parse_specs([*CONTROLS, *names], [context.num_steps]),
        context.targets,
        context.seeds,
        "last",
        context.training,
    )
    results = bench(plan, context.out / "bench")
    rows = results["table"]
    if not rows:
        (context.out / "bench" / "bench.json").unlink()  # nothing is there that another command could spoil
        reasons = dict.fromkeys(cell["reason"] for cell in results["failed"])
        raise InputError(f"No row of the comparison could be made: {' '.join(reasons)}")
    places = list(dict.fromkeys(place for row in rows for place in row["targets"]))
    cells = [
        [
            row["label"],
            *(spread(row["targets"].get(place)) for place in places),
            spread(row),
            gain(row),
            asks_for(row),
        ]
        for row in rows
    ]
    published = [*context.published("comparison"), *context.published("stronger")]
    groups = [len(cells)] if published else []
    if published:
        cells.append(["published, with selection and training of their own"])
        cells += [[*quoted_row(row, places), row.note] for row in published]
    header = ["accuracy, %", *short_names(places).values(), "mean", "difference", "asks for"]
    return Outcome(
        [Table(header, cells, results["plus_minus"], groups=groups)],
        [_figure(rows)],
        {"table": rows, "failed": results["failed"]},
        [f"Not in the table: {text}" for text in _missing(results["failed"])],
    )


def _missing(failed: list[dict[str, Any]]) -> list[str]:
    """Every reason once, after those that it kept out."""
    reasons: dict[str, dict[str, None]] = {}
    for cell in sorted(failed, key=lambda cell: (cell["adapter"], cell["reason"])):
        reasons.setdefault(cell["reason"], {})[cell["adapter"]] = None
    return [f"{', '.join(adapters)}: {reason}" for reason, adapters in reasons.items()]


def _figure(rows: list[dict[str, Any]]) -> Drawing:
    import numpy as np

    from sourceward.report import figures

    shown = [row for row in rows if row["adapter"] != "none"]
    low, gain, high = (np.array([100 * row[k] for row in shown]) for k in ("gain_low", "gain", "gain_high"))

    def draw(figure: Any) -> None:
        figures.draw_gains(
            figure.subplots(),
            [row["label"] for row in shown],
            gain,
            low,
            high,
            xlabel="points above no adaptation",
        )

    caption = (
        "Difference to no adaptation with its 95 % interval. An interval that crosses the line is no gain."
    )
    return Drawing("comparison", caption, (7.0, 0.9 + 0.35 * len(shown)), draw)
