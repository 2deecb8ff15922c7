"""`sourceward bench [PRESET] DATA... --out DIR`: leave one domain out, every adapter on the same models."""

import json as jsonlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sourceward._util.errors import InputError
from sourceward.cli.options import (
    Json,
    Option,
    Quiet,
    numbers,
    reader_options,
    seed_numbers,
    training_settings,
    wide_console,
)

FAILED = 3
"""Exit code when some cells failed and the rest are there."""


def bench(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="[PRESET] DATA...", help="Feature files, or images or texts; a preset may come first."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for results.json, cells and models.")],
    targets: Annotated[str, typer.Option(help="Domains to leave out, by comma; all by default.")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds, by comma.")] = "0",
    adapters: Annotated[
        str,
        typer.Option(
            help="By comma, options after colons: ebtsa,t3a,tent:batch_size=16. `all` for every one."
        ),
    ] = "linear,ebtsa",
    steps: Annotated[str, typer.Option(help="Numbers of steps of ebtsa, by comma.")] = "0,5,10,20,auto",
    selection: Annotated[
        str, typer.Option(help="source, leave-one-source-out, last, or oracle (looks at the target).")
    ] = "source",
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster (RAY_ADDRESS).")] = "local",
    jobs: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    backbone: Annotated[str | None, typer.Option(help="As in `fit`.")] = None,
    weights: Annotated[str, typer.Option(help="As in `fit`.")] = "default",
    freeze: Annotated[bool, typer.Option("--freeze", help="As in `fit`.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting: key=value.")] = None,
    option: Option = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="`bench speed` in seconds, to try it.")] = False,
    only: Annotated[
        str, typer.Option(help="Of `bench speed`: prediction, training, or sections, by comma.")
    ] = "",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on all domains but one, answer on that one with every adapter; each domain, each seed.

    `sourceward bench speed` measures what adaptation costs on this machine instead.

    Run the same command again after a kill: cells that are there are not computed again. Exit code 3: some
    cells failed; the table says which and why.
    """
    if data == ["speed"]:
        from sourceward.cli.bench_speed import bench_speed

        bench_speed(out, device, json, quick, only)
        return
    if only:
        raise InputError(f"Expected `--only` after `bench speed`, but got it for {' '.join(data)}.")
    from sourceward._util.storage import write_whole
    from sourceward.bench.protocol import Plan
    from sourceward.bench.protocol import bench as run
    from sourceward.bench.provenance import command
    from sourceward.bench.specs import parse_specs
    from sourceward.bench.training import Training

    preset, data = split_preset(data)
    given = None if weights.lower() == "none" else weights
    training = Training(training_settings(set_), device, True, False, backbone, given, freeze, preset)
    plan = Plan(
        tuple(data),
        parse_specs(adapter_names(adapters), step_numbers(steps)),
        tuple(name for name in targets.split(",") if name),
        seed_numbers(seeds),
        selection,
        training,
        tuple(reader_options(option).items()),
    )
    report, start = None if json or quiet else tell, time.monotonic()
    results = {"command": command(sys.argv), **run(plan, out, engine=engine, workers=jobs, on_cell=report)}
    results["wall_seconds"] = round(time.monotonic() - start, 1)  # of what was not there yet
    write_whole(out / "results.json", jsonlib.dumps(results, indent=1) + "\n")
    if json:
        typer.echo(jsonlib.dumps(results))
    elif not quiet:
        show(results, wide_console())
        typer.echo(f"`sourceward report {out}` makes a page of it.")
    if any(not cell.get("unsuitable") for cell in results["failed"]):
        raise typer.Exit(FAILED)


def show(results: dict[str, Any], console: Console) -> None:
    """The table, what its spreads mean, and what is missing from it."""
    for part in tables(results):
        console.print(part)
    console.print(results["plus_minus"], highlight=False)
    console.print(
        "Asks for: weights that change at test time, state kept from sample to sample, a batch at once.",
        highlight=False,
    )
    if results["selection"] == "oracle":
        console.print("ORACLE rows chose by the target's own labels: an upper bound, never a result.")
    for text in missing(results["failed"]):
        console.print(text, highlight=False, markup=False)


def missing(failed: list[dict[str, Any]]) -> list[str]:
    """One line for each adapter and reason."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for cell in failed:
        key = (cell["adapter"], cell["reason"], bool(cell.get("unsuitable")))
        groups.setdefault(key, []).append(f"{cell['data']}/{cell['target']}, seed {cell['seed']}")
    return [
        f"{adapter} does not apply: {reason}"
        if unsuitable
        else f"{adapter} FAILED in {len(cells)} cells, the first {cells[0]}: {reason}"
        for (adapter, reason, unsuitable), cells in groups.items()
    ]


def tables(results: dict[str, Any]) -> list[Table]:
    """Accuracy on each target; then the mean of each contestant, its difference to no adaptation, and what
    it costs."""
    from sourceward.report.words import asks_for, cost, gain, short_names, spread

    rows = results["table"]
    places = list(dict.fromkeys(place for row in rows for place in row["targets"]))
    each, mean = Table(title="Accuracy on each target, %"), Table(title="Mean over targets, %")
    each.add_column("adapter")
    for name in short_names(places).values():
        each.add_column(escape(name), justify="right")
    mean.add_column("adapter")
    for name in ("accuracy", "difference (95 % interval)", "asks for", "ms a sample"):
        mean.add_column(name, justify="right")
    for row in rows:
        style = "dim" if row["oracle"] else None
        cells = [f"{100 * row['targets'][p]['mean']:.1f}" if p in row["targets"] else "-" for p in places]
        each.add_row(escape(row["label"]), *cells, style=style)
        mean.add_row(escape(row["label"]), spread(row), gain(row), asks_for(row), cost(row), style=style)
    return [each, mean]


def tell(cell: dict[str, Any]) -> None:
    if not cell.get("unsuitable"):
        print(line(cell), file=sys.stderr)


def line(cell: dict[str, Any]) -> str:
    """One cell, as it is finished."""
    where = f"{cell['data']} without {','.join(cell['left_out'])}, seed {cell['seed']}, {cell['target']}"
    says = f"FAILED: {cell['failed']}" if "failed" in cell else f"{100 * cell['numbers']['accuracy']:.1f} %"
    return f"{where}: {cell['adapter']} {says}"


def split_preset(words: list[str]) -> tuple[str | None, list[str]]:
    """The preset, when one comes first, and the data."""
    from sourceward.training.presets import PRESETS

    if words[0] not in PRESETS:
        return None, words
    if len(words) == 1:
        raise InputError(
            f"Expected where the data lies after the preset: "
            f"`sourceward bench {words[0]} {PRESETS[words[0]].dataset}:/path --out DIR`."
        )
    return words[0], words[1:]


def adapter_names(text: str) -> list[str]:
    from sourceward.adaptation import list_adapters
    from sourceward.bench.specs import CONTROLS

    names = [name.strip() for name in text.split(",") if name.strip()]
    return [*CONTROLS, *list_adapters()] if names == ["all"] else names


def step_numbers(text: str) -> list[int | str]:
    parts = [part.strip() for part in text.split(",")]
    return [part if part == "auto" else numbers("steps", part, " or auto")[0] for part in parts]
