"""`sourceward predict RUN INPUT... --out p.csv`: labels, probabilities and energies for files."""

import json as jsonlib
from dataclasses import asdict
from typing import Annotated

import typer

from sourceward._util.errors import unknown_name
from sourceward.cli.options import (
    Device,
    Json,
    NumSteps,
    Option,
    Quiet,
    RunPath,
    Threads,
    Tta,
    bars,
    load_model,
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
        str | None, typer.Option(help="Column of a table that holds the texts or image paths.")
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(help="Folder that image paths in tables are relative to and must not leave."),
    ] = None,
    option: Option = None,
    num_steps: NumSteps = None,
    tta: Tta = None,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict files. Each row has label, probability, status, and the label and energies of each source.

    An input that cannot be read gets a row with the reason, and the other inputs are predicted. For a table,
    `--option text=NAME` (or image=NAME) means `--column NAME`, so the options of `fit` can be repeated here.

    The status of a row:

    adapted: the energy of at least one source fell along its chain.
    not_adapted: adaptation is off, or the number of steps is 0.
    energy_not_lower: no step lowered the energy of any source; the sample was not changed.
    nonfinite: adaptation gave NaN or infinity; the prediction is the unadapted one.
    unreadable: the input could not be read; `reason` says why.
    """
    from sourceward.model.predicting import predict_files

    options = table_options(option)
    model = load_model(run, device, num_steps, tta)
    column, delimiter = column or options.get(model.kind), options.get("delimiter")
    predicted, failures = predict_files(
        model,
        inputs,
        out,
        column=column,
        delimiter=delimiter,
        root=root or options.get("root"),
        progress=bars(quiet),
    )
    if json:
        unreadable = [asdict(failure) for failure in failures]
        typer.echo(jsonlib.dumps({"out": out, "predicted": predicted, "unreadable": unreadable}))
        return
    if not quiet:
        typer.echo(f"Predicted {predicted:,} input{'s' * (predicted != 1)}; the rows are in {out}.", err=True)
    if failures:
        for failure in failures[:SHOWN]:
            typer.echo(f"unreadable {failure.name}: {failure.reason}", err=True)
        more = f" ({len(failures) - SHOWN:,} more not shown)" if len(failures) > SHOWN else ""
        typer.echo(
            f"{len(failures):,} of the inputs could not be read{more}; they are marked in {out}.", err=True
        )


def table_options(option: list[str] | None) -> dict[str, str]:
    """Check the options of a table. Those that name label and domain columns are accepted and not used."""
    import inspect

    from sourceward.data.table import read_table

    options = reader_options(option)
    known = list(inspect.signature(read_table).parameters)[1:]
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known)
    return {name: str(value) for name, value in options.items() if value is not None}
