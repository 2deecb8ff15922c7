"""`sourceward predict RUN INPUT... --out p.csv`: labels for files, with what stands behind them."""

import json as jsonlib
from dataclasses import asdict
from typing import Annotated

import typer

from sourceward.cli.options import Device, Json, Quiet, RunPath, bars

SHOWN = 5


def predict(
    run: RunPath,
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT...", help="Images, folders, globs, text files, tables.")
    ],
    out: Annotated[str, typer.Option(help="File to write, .csv or .jsonl.")],
    column: Annotated[
        str | None, typer.Option(help="Column of a table that holds the texts or paths.")
    ] = None,
    num_steps: Annotated[int | None, typer.Option(help="Steps of the walk; 0 for no adaptation.")] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict files. Each row has label, probability, each source's vote and energies, and a status.

    An input that cannot be read gets a row that says so, and the rest go on.
    """
    from sourceward.model import load
    from sourceward.model.predicting import predict_files

    model = load(run, device)
    if num_steps is not None:
        model.settings = model.asked(num_steps)
    failures = predict_files(model, inputs, out, column=column, progress=bars(quiet))
    if json:
        typer.echo(jsonlib.dumps({"out": out, "unreadable": [asdict(failure) for failure in failures]}))
    elif failures:
        for failure in failures[:SHOWN]:
            typer.echo(f"unreadable {failure.name}: {failure.reason}", err=True)
        more = f" ({len(failures) - SHOWN:,} more not shown)" if len(failures) > SHOWN else ""
        typer.echo(f"{len(failures):,} of the inputs could not be read{more}; {out} marks them.", err=True)
