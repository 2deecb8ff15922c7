"""`sourceward bench FILE... --out DIR`: leave one domain out, with and without adaptation."""

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from sourceward.bench.features import bench_features
from sourceward.bench.provenance import command
from sourceward.errors import InputError


def bench(
    data: Annotated[list[str], typer.Argument(help="Feature files, or one dataset of images or texts.")],
    out: Annotated[Path, typer.Option(help="Folder for results.json.")],
    targets: Annotated[str, typer.Option(help="Domains to leave out, by comma; all by default.")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds, by comma.")] = "0",
    steps: Annotated[str, typer.Option(help="Numbers of steps, by comma.")] = "0,5,10,20",
    backbone: Annotated[str | None, typer.Option(help="As in `fit`.")] = None,
    weights: Annotated[str, typer.Option(help="As in `fit`.")] = "default",
    freeze: Annotated[bool, typer.Option("--freeze", help="As in `fit`.")] = False,
    runs: Annotated[
        Path | None, typer.Option(help="Folder for the model folders; OUT/runs if not given.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting: key=value.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Fit on all domains but one, answer on that one with and without adaptation; each domain, each seed."""
    from sourceward.data import open_dataset

    common: dict[str, Any] = {
        "targets": [name for name in targets.split(",") if name],
        "seeds": _numbers("seeds", seeds),
        "steps": _numbers("steps", steps),
        "on_cell": None if json else lambda cell: print(_line(cell), file=sys.stderr),
    }
    settings = dict(_setting(item) for item in set_ or ())
    dataset = open_dataset(data[0])
    if dataset.kind == "features":
        results = bench_features(data, settings={"device": device} | settings, **common)
    else:
        from sourceward.bench.raw import bench_raw

        if len(data) > 1:
            raise InputError(f"Expected one dataset of {dataset.kind}s, but got {len(data)}.")
        given = None if weights == "none" else weights
        options: dict[str, Any] = {"backbone": backbone, "weights": given, "freeze": freeze, "device": device}
        results = bench_raw(dataset, runs=runs or out / "runs", settings=settings, **options, **common)
    results = {"command": command(sys.argv), **results}
    out.mkdir(parents=True, exist_ok=True)
    temporary = out / ".results.json"
    temporary.write_text(jsonlib.dumps(results, indent=1) + "\n")
    temporary.replace(out / "results.json")
    if json:
        typer.echo(jsonlib.dumps(results))
    else:
        Console().print(_table(results))


def _table(results: dict[str, Any]) -> Table:
    """One row per target, the mean over seeds in each cell."""
    steps = [str(k) for k in results["steps"]]
    cells = results["cells"]
    linear = "linear" in cells[0]
    table = Table("data", "target", *(["linear"] if linear else []), *(f"{k} steps" for k in steps))
    keys = list(dict.fromkeys((c["data"], c["target"]) for c in cells))
    rows = []
    for key in keys:
        same = [c for c in cells if (c["data"], c["target"]) == key]
        accuracy = [np.mean([c["by_steps"][k]["accuracy"] for c in same]) for k in steps]
        rows.append([*([np.mean([c["linear"] for c in same])] if linear else []), *accuracy])
        table.add_row(*key, *(f"{100 * v:.1f}" for v in rows[-1]))
    table.add_section()
    table.add_row("mean", "", *(f"{100 * v:.2f}" for v in np.mean(rows, axis=0)))
    return table


def _line(cell: dict[str, Any]) -> str:
    scores = ", ".join(f"{k}: {100 * v['accuracy']:.1f}" for k, v in cell["by_steps"].items())
    return f"{cell['data']} without {cell['target']}, seed {cell['seed']}: {scores}"


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"Expected whole numbers by comma in --{name}, but got {text!r}.") from None


def _setting(item: str) -> tuple[str, Any]:
    key, found, value = item.partition("=")
    if not found:
        raise InputError(f"Expected --set key=value, but got {item!r}.")
    try:
        return key, jsonlib.loads(value)
    except ValueError:
        return key, value
