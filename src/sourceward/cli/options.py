"""Options that several subcommands share."""

from typing import Annotated, Any

import typer
from rich.console import Console

WIDE = 120
"""Columns of a table that goes to a file."""

Data = Annotated[str, typer.Argument(help="Folder, .tar, table, features, hf:NAME or name:/path.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Of the data's reader: label=COLUMN and the like of a table; see `list datasets`.",
    ),
]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A model folder, as `fit` writes it.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, no summary.")]


def reader_options(texts: list[str] | None) -> dict[str, Any]:
    """What every `--option` says, as `open_dataset` takes it."""
    from sourceward.fitting.values import parse_assignments

    return parse_assignments(texts or [], "--option")


def wide_console(stderr: bool = False) -> Console:
    """As wide as the terminal; wide enough for a table where there is none."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDE)


def bars(quiet: bool) -> bool | None:
    """What `progress=` wants: off, or when somebody is watching."""
    return False if quiet else None
