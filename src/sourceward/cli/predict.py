"""`sourceward predict RUN INPUT... --out p.csv`: labels for files, with what stands behind them."""

import json as jsonlib
from dataclasses import asdict
from typing import Annotated

import typer

from sourceward._util.errors import unknown_name
from sourceward.cli.options import (
    Device,
    Json,
    Option,
    Quiet,
    RunPath,
    Views,
    asked_model,
    bars,
    reader_options,
)

SHOWN = 5


def predict(
    run: RunPath,
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Images, folders, globs, .tar, text files, tables."),
    ],
    out: Annotated[str, typer.Option(help="File to write, .csv or .jsonl.")],
    column: Annotated[
        str | None, typer.Option(help="Column of a table that holds the texts or paths.")
    ] = None,
    option: Option = None,
    num_steps: Annotated[int | None, typer.Option(help="Steps of the walk; 0 for no adaptation.")] = None,
    views: Views = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict files. Each row has label, probability, each source's vote and energies, and a status.

    An input that cannot be read gets a row that says so, and the rest go on. Of a table, `--option text=NAME`
    (or image=NAME) is `--column NAME`, so that the options of `fit` may be given again.

    The status of a row:

    moved: at least one source moved the sample.
    not_adapted: no step was asked for, as on every row where adaptation is off.
    energy_not_lower: no source found a lower energy; not moved.
    nonfinite: the walk left the finite numbers; the unadapted answer.
    unreadable: no answer; `reason` says why.
    """
    from sourceward.model.predicting import predict_files

    options = table_options(option)
    model = asked_model(run, device, num_steps, views)
    column, delimiter = column or options.get(model.kind), options.get("delimiter")
    answered, failures = predict_files(
        model, inputs, out, column=column, delimiter=delimiter, progress=bars(quiet)
    )
    if json:
        unreadable = [asdict(failure) for failure in failures]
        typer.echo(jsonlib.dumps({"out": out, "answered": answered, "unreadable": unreadable}))
        return
    if not quiet:
        typer.echo(f"{answered:,} input{'s' * (answered != 1)} answered in {out}.", err=True)
    if failures:
        for failure in failures[:SHOWN]:
            typer.echo(f"unreadable {failure.name}: {failure.reason}", err=True)
        more = f" ({len(failures) - SHOWN:,} more not shown)" if len(failures) > SHOWN else ""
        typer.echo(f"{len(failures):,} of the inputs could not be read{more}; {out} marks them.", err=True)


def table_options(option: list[str] | None) -> dict[str, str]:
    """Options of a table; those that name columns of labels and domains have no part in a prediction."""
    import inspect

    from sourceward.data.table import read_table

    options = reader_options(option)
    known = list(inspect.signature(read_table).parameters)[1:]
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known)
    return {name: str(value) for name, value in options.items() if value is not None}
