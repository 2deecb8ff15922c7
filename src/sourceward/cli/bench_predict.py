"""`sourceward bench predict --out DIR`: the cost of predicting large data on this machine."""

import json as jsonlib
import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from sourceward.cli.options import Json, Out, Quick

Only = Annotated[str, typer.Option(help="features, images, or both by comma; both by default.")]


def bench_predict(out: Out, only: Only = "", quick: Quick = False, json: Json = False) -> None:
    """Measure the cost of predicting large data, Parquet to Parquet, on this machine.

    Rows a second and memory, the same files after a kill, and with Ray workers. Writes OUT/SECTION.json.
    """
    from sourceward._util.storage import open_folder, write_whole
    from sourceward.bench.large import QUICK, LargePlan, measure_large
    from sourceward.bench.protocol.provenance import command, versions

    plan = QUICK if quick else LargePlan()
    open_folder(out)
    for section in only.split(",") if only else ("features", "images"):
        load = round(os.getloadavg()[0], 2)
        found = measure_large(plan, section)
        head = {"command": command(sys.argv), "cores": os.cpu_count(), "load_at_start": load}
        results = {**head, "versions": versions(), "plan": asdict(plan), **found}
        text = jsonlib.dumps(results, indent=1)
        write_whole(out / f"{section}.json", text + "\n")
        typer.echo(text if json else f"{section}: {jsonlib.dumps(found, indent=1)}")
