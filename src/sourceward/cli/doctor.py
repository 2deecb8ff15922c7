"""`sourceward doctor DATA`: report what a dataset holds and what is wrong with it."""

import json as jsonlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from sourceward.cli.options import Backbone, Data, Json, Option, reader_options

if TYPE_CHECKING:
    from sourceward.data import DomainDataset
    from sourceward.data.diagnosis import Diagnosis

SHOWN_CLASSES = 20
SHOWN_DOMAINS = 8
SHOWN_LINES = 5
WARNING = "[yellow]warning[/yellow] same content under several classes: the labels contradict each other"
REPEATS = "same content more than once in a class: a copy may be in training and validation at once"


def doctor(
    data: Data,
    target: Annotated[
        list[str] | None, typer.Option(help="A domain to leave out of training; may be repeated.")
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option(help="Accept classes that are missing from a source.")
    ] = False,
    quick: Annotated[
        bool, typer.Option(help="Read image headers only; truncated files are not found.")
    ] = False,
    option: Option = None,
    backbone: Backbone = None,
    json: Json = False,
) -> None:
    """Show domains, classes, sizes, duplicates and broken files, and what `fit` would do and take.

    Time and disk are estimated with the backbone that `fit` would use, or --backbone: a few samples are read
    and encoded. --quick leaves that out.

    Exits with code 2 if `fit` would refuse the data, and prints how to fix it.
    """
    from sourceward.data import open_dataset
    from sourceward.data.diagnosis import doctor as diagnose

    options = reader_options(option)
    about: Any = None
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("Reading samples")
        diagnosis = diagnose(
            open_dataset(data, **options) if options else data,
            target=target or (),
            allow_missing=allow_missing,
            quick=quick,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if not (quick or diagnosis.refusals or diagnosis.kind == "features"):
        dataset = open_dataset(data, **options)
        about = _estimate(dataset.without(diagnosis.targets) if diagnosis.targets else dataset, backbone)
    if json:
        cost = about.to_dict() if hasattr(about, "to_dict") else None
        typer.echo(jsonlib.dumps(diagnosis.to_dict() | {"estimate": cost}, indent=2))
    else:
        render(diagnosis, Console())
        lines = [about] if isinstance(about, str) else [] if about is None else about.lines()
        _section(Console(), "What it would take", lines)
    if diagnosis.refusals:
        raise typer.Exit(2)


def _estimate(sources: "DomainDataset", backbone: str | None) -> Any:
    """Return what the backbone would take, or why that is not known."""
    from sourceward.fitting.estimate import estimate_fit

    try:
        return estimate_fit(sources, backbone)
    except Exception:  # no network, a missing package: the rest of the diagnosis stands
        which = backbone or "the default backbone"
        return f"An unknown time: {which} cannot be loaded here. Name one with --backbone."


def render(diagnosis: "Diagnosis", console: Console) -> None:
    """Print the table of counts, the findings, and what `fit` would do or why it would refuse."""
    if diagnosis.domains:
        console.print(_counts_table(diagnosis))
    for line in _facts(diagnosis):
        console.print(escape(line))
    _section(console, "broken", [f"{p.where}: {p.message}" for p in diagnosis.broken])
    _section(console, WARNING, [" = ".join(ids) for ids in diagnosis.contradictions])
    _section(console, "same content in several domains", [" = ".join(ids) for ids in diagnosis.duplicates])
    _section(console, REPEATS, [" = ".join(ids) for ids in diagnosis.repeats])
    _section(console, "missing", [f"{d} has no {c}" for d, c in diagnosis.missing])
    _section(console, "notes", [p.message for p in diagnosis.notes])
    if not diagnosis.refusals:
        _section(console, "What `sourceward fit` would do", diagnosis.plan, limit=10)
    for refusal in diagnosis.refusals:
        console.print(f"[red]refused[/red] {escape(refusal.reason)} [bold]{escape(refusal.fix)}[/bold]")


def _counts_table(diagnosis: "Diagnosis") -> Table:
    """Return the samples by class (rows) and domain (columns): the first few of each, and all totals."""
    table = Table(title=escape(diagnosis.name))
    table.add_column("class")
    shown = diagnosis.domains[:SHOWN_DOMAINS]
    for domain in (*shown, "all"):
        table.add_column(escape(domain), justify="right")
    columns = list(zip(*diagnosis.counts))
    for label, counts in list(zip(diagnosis.classes, columns))[:SHOWN_CLASSES]:
        cells = [f"{n:,}" if n else "[red]0[/red]" for n in counts[:SHOWN_DOMAINS]]
        table.add_row(escape(label), *cells, f"{sum(counts):,}")
    table.add_section()
    totals = [sum(row) for row in diagnosis.counts]
    table.add_row("all", *(f"{n:,}" for n in totals[:SHOWN_DOMAINS]), f"{sum(totals):,}")
    hidden = [
        f"{more} more {what}"
        for what, more in (
            ("classes", len(diagnosis.classes) - SHOWN_CLASSES),
            ("domains", len(diagnosis.domains) - SHOWN_DOMAINS),
        )
        if more > 0
    ]
    table.caption = f"and {' and '.join(hidden)}; --json has them all" if hidden else None
    return table


def _facts(diagnosis: "Diagnosis") -> list[str]:
    """Return sentences on the number of samples, the image sizes and the split."""
    if not diagnosis.domains:
        return []
    balance = "All classes of all domains have equally many samples."
    if diagnosis.imbalance > 1:
        times = f"{diagnosis.imbalance:.3g} times the samples of the smallest"
        balance = f"The largest class of all domains has {times}."
    facts = [
        f"{diagnosis.num_samples:,} samples ({diagnosis.kind}), {len(diagnosis.domains)} domains, "
        f"{len(diagnosis.classes)} classes. {balance}"
    ]
    if diagnosis.image_sizes:
        sizes = diagnosis.image_sizes
        small, middle, large = (f"{w}x{h}" for w, h in (sizes.smallest, sizes.median, sizes.largest))
        facts.append(f"Image sizes: {small} to {large}, median {middle}.")
    if diagnosis.split:
        train, val = diagnosis.split
        facts.append(f"Split: {train:,} for training, {val:,} for validation, {diagnosis.split_by}.")
    return facts


def _section(console: Console, title: str, lines: Sequence[str], limit: int = SHOWN_LINES) -> None:
    """Print a title and the first lines below it; nothing if there are none."""
    if not lines:
        return
    console.print(f"[bold]{title}[/bold]" + (f" ({len(lines):,})" if len(lines) > limit else ""))
    for line in lines[:limit]:
        console.print(f"  {escape(line)}", highlight=False)
    if len(lines) > limit:
        console.print(f"  ... {len(lines) - limit:,} more; --json lists them all")
