"""Every adapter on the same checkpoints, beside published numbers."""

from typing import Any

from sourceward._util.errors import InputError
from sourceward._util.tables import Table, gain_text, mean_text, requirements, short_names
from sourceward.adaptation import list_adapters
from sourceward.bench.experiments.base import OFF, Context, Outcome, experiment
from sourceward.bench.experiments.scores import PUBLISHED, gains_drawing, published_row
from sourceward.bench.protocol.methods import CONTROLS, NONE, parse_methods
from sourceward.bench.protocol.plan import Plan, bench


@experiment("comparison", "Every test-time adapter on the same checkpoints.")
def comparison(context: Context) -> Outcome:
    names = ["none", "ebtsa", "t3a"] if context.small else list_adapters()
    methods = parse_methods([*CONTROLS, *names], [context.num_steps])
    plan = Plan(
        context.data, methods, context.targets, context.seeds, "last", context.training, context.options
    )
    results = bench(plan, context.out / "bench")
    rows = results["table"]
    if not rows:
        (context.out / "bench" / "bench.json").unlink()  # an empty folder may be used by another command
        reasons = dict.fromkeys(run["reason"] for run in results["failed"])
        raise InputError(f"No row of the comparison could be made: {' '.join(reasons)}")
    targets = list(dict.fromkeys(where for row in rows for where in row["targets"]))
    lines = [
        [
            row["label"],
            *(mean_text(row["targets"].get(where)) for where in targets),
            mean_text(row),
            gain_text(row),
            requirements(row),
        ]
        for row in rows
    ]
    known = [*context.published("comparison"), *context.published("stronger")]
    groups = [len(lines)] if known else []
    if known:
        lines += [[PUBLISHED], *([*published_row(row, targets), row.note] for row in known)]
    header = ["accuracy, %", *short_names(targets).values(), "mean", "difference", "requires"]
    return Outcome(
        [Table(header, lines, results["plus_minus"], groups=groups)],
        [gains_drawing("comparison", {r["label"]: r for r in rows if r["method"] != NONE}, OFF)],
        {"table": rows, "failed": results["failed"]},
        [f"Not in the table: {text}" for text in _missing(results["failed"])],
    )


def _missing(failed: list[dict[str, Any]]) -> list[str]:
    """Return every reason once, after the methods that it excludes."""
    reasons: dict[str, dict[str, None]] = {}
    for run in sorted(failed, key=lambda run: (run["method"], run["reason"])):
        reasons.setdefault(run["reason"], {})[run["method"]] = None
    return [f"{', '.join(methods)}: {reason}" for reason, methods in reasons.items()]
