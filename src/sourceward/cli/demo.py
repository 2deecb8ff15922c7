"""`sourceward demo`: two deployments, what to expect of each, and the truth; a minute, no download."""

import json as jsonlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sourceward.cli.options import terminal_table


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and results.json.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    quick: Annotated[
        bool, typer.Option(help="Seconds instead of a minute; the numbers mean nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    figure: Annotated[Path | None, typer.Option(hidden=True, help="Also draw the README's figure.")] = None,
) -> None:
    """Decide for two deployments whether to adapt, from the source domains alone; then measure.

    Handwritten digits at a new angle, and of new writers. For each, expected accuracy and gain come first;
    then the accuracy on the target, with and without adaptation and by controls.
    """
    from sourceward._util.storage import open_folder
    from sourceward.bench.demo import QUICK, SETTINGS, decide, deployments, measure, one_thread
    from sourceward.report.demo import draw_figure, expected_sentence, method_table, verdict, write_report

    settings, start = QUICK if quick else SETTINGS, time.monotonic()
    given = deployments(seed, 100 if quick else None)
    open_folder(out)
    console = Console(quiet=json)
    found, cards = {}, {}
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        for deployment in given:
            console.print(f"\n[bold]{escape(deployment.title)}[/bold]", highlight=False)
            model = decide(deployment, Path(folder), seed, settings, False if json else None)
            console.print(escape(expected_sentence(model.info["expected_gain"])), highlight=False)
            found[deployment.name], cards[deployment.name] = measure(deployment, model, settings, seed)
            console.print(escape(verdict(found[deployment.name])), highlight=False)
        results = _results(found, seed, settings, time.monotonic() - start)
        write_report(results, cards, out)
        if figure is not None:
            draw_figure(results, figure)
    if json:
        typer.echo(jsonlib.dumps(results, indent=2))
    console.print("", terminal_table(vars(method_table([*found.values()]))))
    console.print(f"[bold]{escape(results['headline'])}[/bold]", highlight=False)
    console.print(
        f"Took {results['seconds']:.0f} s. Open {escape(str(out / 'report.html'))}", highlight=False
    )


def _results(found: dict[str, Any], seed: int, settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    from sourceward.bench.protocol.provenance import command, versions
    from sourceward.report.demo import headline, verdict

    return {
        "headline": headline(list(found.values())),
        "verdicts": [verdict(own) for own in found.values()],
        "deployments": found,
        "command": command(sys.argv),
        "seed": seed,
        "settings": settings,
        "seconds": round(seconds, 1),
        "versions": versions(),
    }
