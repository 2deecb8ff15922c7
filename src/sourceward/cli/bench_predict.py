"""`sourceward bench predict --out DIR`: the cost of predicting large data on this machine."""

import json as jsonlib
import os
import sys
from dataclasses import asdict
from pathlib import Path

import typer


def bench_predict(out: Path, json: bool, quick: bool, only: str) -> None:
    """Measure features, images or both; write DIR/<section>.json."""
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
