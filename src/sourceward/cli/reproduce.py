"""`sourceward reproduce NAME --data DATA...`: a table or figure of the paper, with published numbers."""

import json as jsonlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sourceward.cli.options import (
    Backbone,
    Device,
    Freeze,
    Json,
    Option,
    Preset,
    Quiet,
    Seeds,
    Settings,
    Targets,
    Weights,
    reader_options,
    seed_numbers,
    terminal_table,
    training_settings,
    wide_console,
)


def reproduce(
    name: Annotated[
        str, typer.Argument(help="An experiment, or several by comma: see `sourceward list experiments`.")
    ],
    data: Annotated[
        list[str],
        typer.Option(metavar="DATA...", help="Feature files, or images or texts; several may follow."),
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="DATA", hidden=True)] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results.json and figures; OUT/NAME for several, reproduce/NAME if not given."
        ),
    ] = None,
    targets: Targets = "",
    seeds: Seeds = "0",
    num_steps: Annotated[int, typer.Option(help="Steps of adaptation, where they are not what varies.")] = 20,
    preset: Preset = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder of trained models, to share them; OUT/models if not given.")
    ] = None,
    backbone: Backbone = None,
    weights: Weights = "default",
    freeze: Freeze = False,
    settings: Settings = None,
    option: Option = None,
    small: Annotated[bool, typer.Option("--small", help="Fewer points, for a first look.")] = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one of the paper's experiments; print its table, write figures and results.json.

    Trained models stay below OUT and are not trained again.
    """
    from sourceward.bench.experiments import EXPERIMENTS, Context
    from sourceward.bench.experiments.reproduce import reproduce as run
    from sourceward.bench.protocol.provenance import command
    from sourceward.bench.protocol.training import Training
    from sourceward.report.figures import save_figure

    names = name.split(",")
    for one in names:
        EXPERIMENTS[one]  # the error for an unknown one names the nearest
    folders = {one: out or Path("reproduce") / one for one in names}
    if len(names) > 1:
        out = out or Path("reproduce")
        folders, models = {one: out / one for one in names}, models or out / "models"
    training = Training(training_settings(settings), device, True, backbone, weights, freeze, preset)
    shared = Context(
        (*data, *(more or ())),
        folders[names[0]],
        seed_numbers(seeds),
        tuple(target for target in targets.split(",") if target),
        training,
        num_steps,
        small,
        models,
        options=tuple(reader_options(option).items()),
    )
    for one, folder in folders.items():
        context = replace(shared, out=folder)
        results = run(one, context, command(sys.argv), lambda d, path: save_figure(d.panels, d.size, path))
        if json:
            typer.echo(jsonlib.dumps(results, default=str))
        elif not quiet:
            show(results, wide_console())
            drawn = len(results["figures"])
            typer.echo(f"In {folder}: results.json, {drawn} figure{'s' * (drawn != 1)} (.svg, .png).")
            typer.echo(f"`sourceward report {folder}` makes a page of it.")


def show(results: dict[str, Any], console: Console) -> None:
    """Print tables, captions, notes and the finding."""
    from sourceward.report.experiment import finding

    for table in results["tables"]:
        console.print(terminal_table(table))
        console.print(table["caption"], highlight=False, markup=False)
    for note in filter(None, (*results["notes"], finding(results))):
        console.print(note, highlight=False, markup=False)
