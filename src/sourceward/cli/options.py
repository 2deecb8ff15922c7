"""Options that several subcommands share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sourceward._util.errors import InputError

WIDE = 120
"""Columns of a table that goes to a file."""

Data = Annotated[str, typer.Argument(help="Folder, .tar, table, features, hf:NAME or name:/path.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the dataset reader; may be repeated. For a table: domain, label, text, image, id "
        "or split=COLUMN, delimiter=CHARACTER, root=FOLDER. Known datasets: see `sourceward list datasets`.",
    ),
]
Target = Annotated[list[str] | None, typer.Option(help="A domain to leave out; may be repeated.")]
Targets = Annotated[str, typer.Option(help="Domains to leave out, by comma; all by default.")]
Seeds = Annotated[str, typer.Option(help="Seeds, by comma.")]
Backbone = Annotated[
    str | None, typer.Option(help="timm:NAME, torchvision:NAME, hf:NAME, or a folder; a,b for several.")
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="A file (a,b for several backbones), `default` for the library's, `none` for random ones.",
        callback=lambda given: None if given.lower() == "none" else given,
    ),
]
FREEZE_HINT = (
    "With --freeze, heads and energies train on fixed features in about a minute on a CPU. Start with it, "
    "above all with features of a foundation model."
)
Freeze = Annotated[bool, typer.Option("--freeze", help=f"Do not train the backbone. {FREEZE_HINT}")]
Preset = Annotated[str | None, typer.Option(help="Settings of an experiment: see `sourceward list presets`.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; may be repeated.")
]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A model folder, written by `fit`.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]


def _limit_threads(count: int | None) -> int | None:
    from sourceward._util.threads import limit_threads

    limit_threads(count)
    return count


Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        callback=_limit_threads,
        help="CPU threads at most; by default as many as affinity and container quota allow. Small products "
        "use one.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Allow = Annotated[
    str,
    typer.Option(
        help="What the deployment permits: each sample by itself (sample), samples in order with a state "
        "(stream), or all of them at once (batch)."
    ),
]
Tta = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Test-time augmentation instead of the model's own: transforms joined by +, such as "
        "hflip+adain, or none. See `sourceward list transforms`.",
    ),
]
NumSteps = Annotated[
    int | None,
    typer.Option(
        help="Langevin steps instead of the model's own number. 0 predicts without adaptation, and without "
        "test-time augmentation unless --tta names it."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Quick = Annotated[bool, typer.Option("--quick", help="In seconds, to try it; its numbers mean nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print neither progress bars nor a summary.")]


def reader_options(texts: list[str] | None) -> dict[str, Any]:
    """Return the values of all `--option`, as keyword arguments of `open_dataset`."""
    from sourceward._util.values import parse_assignments

    return parse_assignments(texts or [], "--option")


OWN_FLAGS = {
    "random_state": "use --seeds",
    "device": "use --device",
    "checkpoint": "models are stored under --out",
}
"""Settings that a command which trains many models sets itself, and what to do instead."""


def training_settings(texts: list[str] | None) -> dict[str, Any]:
    """Return the values of all `--set`, for commands that train many models."""
    from sourceward._util.values import parse_assignments

    settings = parse_assignments(texts or [])
    for name, instead in OWN_FLAGS.items():
        if name in settings:
            raise InputError(f"Expected no `--set {name}={settings[name]}` here: {instead}.")
    return settings


def seed_numbers(text: str) -> tuple[int, ...]:
    """Parse `--seeds`. A repeated seed is refused: it would count as two trainings."""
    seeds = numbers("seeds", text)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"Expected every seed once in --seeds, but got {text!r}.")
    return tuple(seeds)


def numbers(name: str, text: str, beside: str = "") -> list[int]:
    """Parse whole numbers of 0 or more, separated by commas; `beside` names what else the option accepts."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"Expected whole numbers{beside}, separated by commas, in --{name}, but got {text!r}."
        ) from None
    if min(found) < 0:
        raise InputError(f"Expected numbers of 0 or more in --{name}, but got {text!r}.")
    return found


def wide_console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or `WIDE` if the output goes to a file."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDE)


def terminal_table(table: Mapping[str, Any], title: str | None = None) -> Table:
    """Return a table of results, the fields of `_util.tables.Table`, for the terminal."""
    result = Table(title=title)
    for number, column in enumerate(table["header"]):
        result.add_column(escape(column), justify="right" if number else "left")
    for number, row in enumerate(table["rows"]):
        if number in table["groups"]:
            result.add_section()
            result.add_row(f"[dim]{escape(row[0])}[/dim]")
        else:
            result.add_row(*map(escape, row))
    return result


def bars(quiet: bool) -> bool | None:
    """Return the value of `progress=`: False for no bars, None for bars if standard error is a terminal."""
    return False if quiet else None


def load_model(run: str, device: str, num_steps: int | None, tta: str | None) -> Any:
    """Load a model folder and apply `--num-steps` and `--tta`."""
    from sourceward.deploy.predictor import load_model

    return load_model(run, device, num_steps, tta)
