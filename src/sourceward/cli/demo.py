"""`sourceward demo`: train, adapt, print the table and write a report, in a minute and without a download."""

import json as jsonlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sourceward.cli.options import terminal_table


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and results.json.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Steps of adaptation; 0 is none.")] = None,
    quick: Annotated[
        bool, typer.Option(help="Seconds instead of a minute; the numbers mean nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    figure: Annotated[Path | None, typer.Option(hidden=True, help="Also draw the README's figure.")] = None,
) -> None:
    """Rotate handwritten digits into domains, adapt samples of unseen angles, and report the gain."""
    from sourceward._util.storage import open_folder
    from sourceward.bench.demo.experiment import DemoSettings, one_thread, quick_settings, run
    from sourceward.bench.demo.numbers import illustrate, summarize
    from sourceward.report.demo import draw_figure, write_report

    settings = quick_settings(seed) if quick else DemoSettings(seed)
    if steps is not None:
        settings = replace(settings, num_steps=steps)
    open_folder(out)
    with one_thread():
        outcome = run(settings)
        results, shown = summarize(outcome) | _provenance(outcome), illustrate(outcome)
        write_report(results, shown, out)
        if figure is not None:
            draw_figure(results, shown, figure)
    if json:
        typer.echo(jsonlib.dumps(results, indent=2))
    else:
        _print(results, out, Console())


def _print(results: dict[str, Any], out: Path, console: Console) -> None:
    from sourceward.report.demo import accuracy_table, source_table

    console.print(f"[bold]{escape(results['headline'])}[/bold]", highlight=False)
    for title, table in (
        ("Accuracy on unseen angles", accuracy_table(results)),
        ("Each source's own predictions", source_table(results)),
    ):
        console.print(terminal_table(vars(table), title))
    for sentence in results["verdicts"]:
        console.print(escape(sentence), highlight=False)
    console.print(
        f"Took {results['seconds']:.0f} s. Open {escape(str(out / 'report.html'))}", highlight=False
    )


def _provenance(outcome: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from sourceward.bench.protocol.provenance import command, versions

    return {
        "command": command(sys.argv),
        "seed": outcome.settings.seed,
        "settings": asdict(outcome.settings),
        "seconds": round(outcome.seconds, 1),
        "versions": versions(),
    }
