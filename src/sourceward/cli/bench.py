"""`sourceward bench [PRESET] DATA... --out DIR`: leave one domain out, every method on the same models."""

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
    Backbone,
    Device,
    Freeze,
    Json,
    Option,
    Quiet,
    Seeds,
    Settings,
    Targets,
    Threads,
    Weights,
    numbers,
    reader_options,
    seed_numbers,
    terminal_table,
    training_settings,
    wide_console,
)

STEPS = "0,5,10,20,auto"
FAILED = 3
"""Exit code when some runs failed and the rest are there."""

BenchData = Annotated[
    list[str],
    typer.Argument(
        metavar="[PRESET] DATA...", help="Feature files, or images or texts; a preset may come first."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for results.json, runs and models.")]
Adapters = Annotated[
    str,
    typer.Option(help="By comma, options after colons: ebtsa,t3a,tent:batch_size=16. `all` for every one."),
]
Methods = Annotated[
    str,
    typer.Option(help="Training methods, by comma: erm,mixstyle,swad. `all` for every one that applies."),
]
Steps = Annotated[
    str, typer.Option(help="Numbers of steps of ebtsa; 0,5,10,20,auto if not given, auto with --methods.")
]
Selection = Annotated[str, typer.Option(help="source, last, or oracle (looks at the target).")]
Engine = Annotated[str, typer.Option(help="local, or ray for a cluster (RAY_ADDRESS).")]
Jobs = Annotated[
    int, typer.Option(help="Processes on this machine; 0 writes the results of the finished runs.")
]

Cost = Annotated[
    bool,
    typer.Option(
        "--cost/--no-cost",
        help="With --methods: measure the cost of an iteration at the end. Leave it out where other work "
        "shares the device, and add it later by `--jobs 0`.",
    ),
]


def bench(
    data: BenchData,
    out: Out,
    targets: Targets = "",
    seeds: Seeds = "0",
    adapters: Adapters = "linear,ebtsa",
    methods: Methods = "",
    steps: Steps = "",
    selection: Selection = "source",
    engine: Engine = "local",
    jobs: Jobs = 1,
    cost: Cost = True,
    backbone: Backbone = None,
    weights: Weights = "default",
    freeze: Freeze = False,
    settings: Settings = None,
    option: Option = None,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on all domains but one and evaluate every adapter on that one, for each domain and seed.

    Four others have a help of their own: `bench speed` measures the cost of adaptation on this machine,
    `bench predict` that of predicting large data, `bench serve` the load that the server holds, and
    `bench drift DATA...` how often `sourceward drift` alarms.

    Run the same command again after a kill: finished runs are not computed again. Exit code 3: some runs
    failed; the output says which and why.
    """
    from sourceward.bench.protocol.methods import parse_methods
    from sourceward.bench.protocol.plan import Plan
    from sourceward.bench.protocol.training import Training

    preset, data = split_preset(data)
    plan = Plan(
        tuple(data),
        parse_methods(adapter_names(adapters), step_numbers(steps or ("auto" if methods else STEPS))),
        tuple(name for name in targets.split(",") if name),
        seed_numbers(seeds),
        selection,
        Training(training_settings(settings), device, False, backbone, weights, freeze, preset),
        tuple(reader_options(option).items()),
    )
    options = {"engine": engine, "workers": jobs, "on_run": None if json or quiet else print_run}
    results = _run(plan, out, methods, cost, options)
    parts = results["methods"] if methods else [results]
    unfinished = sum(part["unfinished"] for part in parts)
    if json:
        typer.echo(jsonlib.dumps(results))
    elif not quiet:
        (show_grid if methods else show)(results, wide_console())
        if unfinished:
            typer.echo(f"Not finished: {unfinished} runs. `--jobs 1` computes them.")
        typer.echo(f"`sourceward report {out}` makes a page of it.")
    if any(not run.get("unsuitable") for part in parts for run in part["failed"]):
        raise typer.Exit(FAILED)


def _run(plan: Any, out: Path, methods: str, cost: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Run a plan, for each of several training methods where they are named, and write its results, now and
    then also those so far."""
    from sourceward._util.storage import write_whole
    from sourceward.bench.protocol.grid import bench_methods, training_methods
    from sourceward.bench.protocol.plan import bench
    from sourceward.bench.protocol.provenance import command
    from sourceward.bench.protocol.runs import refuse_model

    start = time.monotonic()

    def write(found: dict[str, Any]) -> dict[str, Any]:
        seconds = round(time.monotonic() - start, 1)  # of the missing runs
        results = {"command": command(sys.argv), **found, "wall_seconds": seconds}
        write_whole(out / "results.json", jsonlib.dumps(results, indent=1) + "\n")
        return results

    refuse_model(out)
    options["on_results"] = write
    if methods:
        return write(bench_methods(plan, training_methods(methods), out, cost=cost, **options))
    return write(bench(plan, out, **options))


def show(results: dict[str, Any], console: Console) -> None:
    """Print the tables, the meaning of their intervals, and what is missing."""
    for part in tables(results):
        console.print(part)
    console.print(results["plus_minus"], highlight=False)
    console.print(
        "Requirements at test time: weight updates, state kept from sample to sample, a batch at once.",
        highlight=False,
    )
    if results["selection"] == "oracle":
        console.print("ORACLE rows were chosen by the target's labels: an upper bound, never a result.")
    for text in missing(results["failed"]):
        console.print(text, highlight=False, markup=False)


def show_grid(results: dict[str, Any], console: Console) -> None:
    """Print the tables of a grid, their meaning, and what is missing."""
    from sourceward.report.grid import grid_table, remarks, training_table

    for own in (grid_table(results), training_table(results)):
        console.print(terminal_table(vars(own)))
        console.print(own.caption, highlight=False)
    for text in remarks(results):
        console.print(text, highlight=False, markup=False)


def missing(failed: list[dict[str, Any]]) -> list[str]:
    """Return one line for each method and reason."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for run in failed:
        key = (run["method"], run["reason"], bool(run.get("unsuitable")))
        groups.setdefault(key, []).append(f"{run['data']}/{run['target']}, seed {run['seed']}")
    return [
        f"{method} does not apply: {reason}"
        if unsuitable
        else f"{method} FAILED in {len(runs)} runs, the first {runs[0]}: {reason}"
        for (method, reason, unsuitable), runs in groups.items()
    ]


def tables(results: dict[str, Any]) -> list[Table]:
    """Return accuracy on each target; then each method's mean, difference to no adaptation, and cost."""
    from sourceward._util.tables import (
        gain_text,
        mean_text,
        ms_text,
        requirements,
        short_names,
        some_targets,
    )

    rows = results["table"]
    targets = list(dict.fromkeys(where for row in rows for where in row["targets"]))
    each, mean = Table(title="Accuracy on each target, %"), Table(title="Mean over targets, %")
    each.add_column("method")
    for name in short_names(targets).values():
        each.add_column(escape(name), justify="right")
    mean.add_column("method")
    for name in ("accuracy", "difference (95 % interval)", "requires", "ms a sample"):
        mean.add_column(name, justify="right")
    for row in rows:
        style = "dim" if row["oracle"] else None
        own = [f"{100 * row['targets'][t]['mean']:.1f}" if t in row["targets"] else "-" for t in targets]
        each.add_row(escape(row["label"]), *own, style=style)
        accuracy = mean_text(row) + some_targets(row, targets)
        texts = accuracy, gain_text(row), requirements(row), ms_text(row)
        mean.add_row(escape(row["label"]), *texts, style=style)
    return [each, mean]


def print_run(run: dict[str, Any]) -> None:
    """Print one run as soon as it is finished."""
    if not run.get("unsuitable"):
        where = f"{run['data']} without {','.join(run['left_out'])}, seed {run['seed']}, {run['target']}"
        says = f"FAILED: {run['failed']}" if "failed" in run else f"{100 * run['numbers']['accuracy']:.1f} %"
        method = " + ".join(filter(None, [run.get("trained_by"), run["method"]]))
        print(f"{where}: {method} {says}", file=sys.stderr)


def split_preset(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the preset, when one comes first, and the data."""
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
    """Return what `--adapters` names."""
    from sourceward.adaptation import list_adapters
    from sourceward.bench.protocol.methods import CONTROLS

    names = [name.strip() for name in text.split(",") if name.strip()]
    return [*CONTROLS, *list_adapters()] if names == ["all"] else names


def step_numbers(text: str) -> list[int | str]:
    """Return what `--steps` names."""
    parts = [part.strip() for part in text.split(",")]
    return [part if part == "auto" else numbers("steps", part, " or auto")[0] for part in parts]
