"""`sourceward bench serve [RUN INPUT...] --out DIR`: the load that the server holds on this machine."""

import json as jsonlib
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sourceward._util.errors import InputError
from sourceward.cli.options import Json, Out, Quick

ServedData = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN INPUT...]", help="A model folder and files; random ones by default."),
]


def bench_serve(out: Out, data: ServedData = None, quick: Quick = False, json: Json = False) -> None:
    """Measure the load that `sourceward serve` holds on this machine, for ten minutes.

    The server has a model folder, or MobileNetV2 with random weights. Writes OUT/results.json.
    """
    import numpy as np

    from sourceward._util.storage import open_folder, write_whole
    from sourceward.bench.large import QUICK, LargePlan, make_folder, random_jpegs
    from sourceward.bench.protocol.provenance import command, versions
    from sourceward.deploy.server_load import LoadPlan, measure_load

    data = data or []
    if len(data) == 1:
        raise InputError("Expected a model folder and files after `bench serve`, or neither of them.")
    plan = LoadPlan(minutes=1 / 3, samples=8, probe_seconds=2.0, hold_seconds=4.0) if quick else LoadPlan()
    open_folder(out)
    head: dict[str, Any] = {"command": command(sys.argv), "plan": asdict(plan), "versions": versions()}
    head |= {"cores": len(os.sched_getaffinity(0)), "load_at_start": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory() as folder:
        if not data:
            work, size = Path(folder), QUICK if quick else LargePlan()
            make_folder(size, "images", work / "run")
            for number, image in zip(
                range(plan.samples), random_jpegs(size.image_size, np.random.default_rng(0))
            ):
                (work / f"{number:03d}.jpg").write_bytes(image)
            data = [str(work / "run"), *map(str, sorted(work.glob("*.jpg")))]
            head["model"] = (
                f"{size.backbone}, random weights, {size.image_size} pixels, {size.num_steps} steps"
            )
        found = head | measure_load(Path(data[0]), data[1:], plan)
    write_whole(out / "results.json", jsonlib.dumps(found, indent=1) + "\n")
    shown = ("requests_per_second", "lost", "wrong", "counts", "milliseconds", "memory_mb")
    typer.echo(jsonlib.dumps(found if json else {name: found[name] for name in shown}, indent=1))
