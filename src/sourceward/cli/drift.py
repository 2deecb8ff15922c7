"""`sourceward drift RUN INPUT...`: do predictions still come from a mixture of the sources?"""

import json as jsonlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sourceward.cli.options import Device, Json, Quiet, RunPath, wide_console

ALARM = 3
"""Exit code of an alarm."""


class FailOn(StrEnum):
    never = "never"
    alarm = "alarm"
    any = "any"


def drift(
    run: RunPath,
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Predictions of RUN (.parquet, .csv, a folder); or data."),
    ],
    window: Annotated[int, typer.Option(help="Rows of a window, in the order of the input.")] = 1000,
    level: Annotated[float, typer.Option(help="Share of windows without shift that alarm.")] = 0.05,
    report: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    fail_on: Annotated[
        FailOn,
        typer.Option(
            help="Exit with code 3: never, on an alarm (more windows than chance explains), or on any window."
        ),
    ] = FailOn.never,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare energies and confidence of predictions with those of held-out samples of the sources.

    Each window is tested against the mixture of the sources that it is nearest to, at a level of 5 %. Data
    that holds no predictions is predicted first.
    """
    from sourceward._util.storage import check_targets, write_whole
    from sourceward.deploy.monitor import measure_drift
    from sourceward.report.drift import drift_headline, drift_page, drift_rows
    from sourceward.report.page import render

    check_targets(out, report)
    results = measure_drift(run, inputs, window=window, level=level, device=device)
    text = jsonlib.dumps(results, indent=1)
    if out is not None:
        write_whole(out, text + "\n")
    if report is not None:
        from sourceward.bench.protocol.provenance import command

        write_whole(report, render(drift_page(results, command(sys.argv))))
    if json:
        typer.echo(text)
    elif not quiet:
        wide_console().print(_table(drift_rows(results)))
        typer.echo(drift_headline(results))
    failed = {FailOn.never: False, FailOn.alarm: results["alarm"], FailOn.any: bool(results["alarms"])}
    if failed[fail_on]:
        raise typer.Exit(ALARM)


def _table(plain: Any) -> Table:
    shown = Table(*plain.header, caption=plain.caption)
    for number, row in enumerate(plain.rows):
        shown.add_row(*row, style="bold" if number in plain.strong else None)
    return shown
