"""Options that several subcommands share."""

from typing import Annotated, Any

import typer
from rich.console import Console

from sourceward._util.errors import InputError

WIDE = 120
"""Columns of a table that goes to a file."""

Data = Annotated[str, typer.Argument(help="Folder, .tar, table, features, hf:NAME or name:/path.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Of the data's reader. Of a table: domain, label, text, image, id or split=COLUMN, "
        "delimiter=SIGN. Of a known dataset: see `sourceward list datasets`.",
    ),
]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A model folder, as `fit` writes it.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Views = Annotated[
    str | None,
    typer.Option(
        help="Views to ask about beside each image, by comma: flip, zoom, turn, gray, sketch, style, "
        "feature_statistics; or none."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, no summary.")]


def reader_options(texts: list[str] | None) -> dict[str, Any]:
    """What every `--option` says, as `open_dataset` takes it."""
    from sourceward._util.values import parse_assignments

    return parse_assignments(texts or [], "--option")


OWN_FLAGS = {
    "random_state": "name seeds with --seeds",
    "device": "name it with --device",
    "checkpoint": "models are kept below --out",
}
"""Settings of one training that a command of many trainings sets itself, and what to do instead."""


def training_settings(texts: list[str] | None) -> dict[str, Any]:
    """What every `--set` says, for commands that train many models."""
    from sourceward._util.values import parse_assignments

    settings = parse_assignments(texts or [])
    for name, instead in OWN_FLAGS.items():
        if name in settings:
            raise InputError(f"Expected no `--set {name}={settings[name]}` here: {instead}.")
    return settings


def seed_numbers(text: str) -> tuple[int, ...]:
    """What `--seeds` says: a seed named twice would be counted as two trainings."""
    seeds = numbers("seeds", text)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"Expected every seed once in --seeds, but got {text!r}.")
    return tuple(seeds)


def numbers(name: str, text: str, beside: str = "") -> list[int]:
    """Whole numbers by comma, none below 0; `beside` names what else may stand there."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"Expected whole numbers{beside} by comma in --{name}, but got {text!r}.") from None
    if min(found) < 0:
        raise InputError(f"Expected numbers of 0 or more in --{name}, but got {text!r}.")
    return found


def wide_console(stderr: bool = False) -> Console:
    """As wide as the terminal; wide enough for a table where there is none."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDE)


def bars(quiet: bool) -> bool | None:
    """What `progress=` wants: off, or when somebody is watching."""
    return False if quiet else None


def asked_model(run: str, device: str, num_steps: int | None, views: str | None) -> Any:
    """The model of a folder with what `--num-steps` and `--views` say; 0 steps are no adaptation at all, and
    have no views but those that are named."""
    from sourceward.model import load

    model = load(run, device)
    if views is not None:
        model.with_tta("" if views == "none" else views.replace(",", "+"))
    elif num_steps == 0:
        model.with_tta("")
    if num_steps is not None:
        model.settings = model.asked(num_steps)
    return model
