"""`sourceward bench drift DATA... --out DIR`: how often `sourceward drift` alarms, with and without shift."""

import json as jsonlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sourceward.cli.options import (
    Backbone,
    Json,
    Option,
    Out,
    Quick,
    Targets,
    Weights,
    reader_options,
    wide_console,
)

DriftData = Annotated[list[str], typer.Argument(metavar="DATA...", help="Feature files, or images or texts.")]


def bench_drift(
    data: DriftData,
    out: Out,
    targets: Targets = "",
    backbone: Backbone = None,
    weights: Weights = "default",
    option: Option = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure how often `sourceward drift` alarms: on windows of the sources, and on unseen domains.

    Images and texts need --backbone. Writes OUT/results.json.
    """
    from dataclasses import asdict

    from sourceward._util.storage import open_folder, write_whole
    from sourceward.bench.drift import NUM_STEPS, RESERVED, DriftPlan
    from sourceward.bench.drift import bench_drift as measure
    from sourceward.bench.protocol.provenance import command, versions
    from sourceward.data import open_dataset
    from sourceward.nn.backbones import create_backbone

    plan, start, rows = DriftPlan(references=2, images=60) if quick else DriftPlan(), time.monotonic(), []
    open_folder(out)
    for name in data:
        dataset = open_dataset(name, **reader_options(option))
        body = None if dataset.kind == "features" else create_backbone(backbone or "", weights=weights)
        named = [name for name in targets.split(",") if name]
        chosen = named or dataset.targets or dataset.domain_names
        for row in measure(dataset, chosen, plan, body):
            rows.append({"data": Path(name.partition(":")[2] or name).name, **row})
    results = {
        "kind": "drift",
        "command": command(sys.argv),
        "plan": asdict(plan) | {"reserved": RESERVED, "num_steps": NUM_STEPS, "level": 0.05},
        "versions": versions(),
        "seconds": round(time.monotonic() - start, 1),
        "rows": rows,
    }
    write_whole(out / "results.json", jsonlib.dumps(results, indent=1) + "\n")
    if json:
        typer.echo(jsonlib.dumps(results))
        return
    wide_console().print(table(rows))
    typer.echo(f"The numbers are in {out / 'results.json'}.")


def table(rows: list[dict[str, Any]]) -> Table:
    """Return a row for each target and kind of window, a column for each size."""
    sizes = sorted({row["size"] for row in rows})
    shown = Table("left out", "windows of", *(f"{size:,}" for size in sizes), title="Windows that alarm, %")
    found = {(row["target"], row["windows"], row["size"]): row["alarms"] for row in rows}
    for target, kind in dict.fromkeys((row["target"], row["windows"]) for row in rows):
        shares = (found.get((target, kind, size)) for size in sizes)
        shown.add_row(target, kind, *("-" if share is None else f"{100 * share:.0f}" for share in shares))
    return shown
