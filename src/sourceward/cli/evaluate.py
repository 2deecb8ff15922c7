"""`sourceward evaluate RUN DATA`: does adaptation help this model on these domains?"""

import json as jsonlib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sourceward.cli.options import (
    Data,
    Device,
    Json,
    Option,
    RunPath,
    Views,
    asked_model,
    bars,
    reader_options,
    wide_console,
)


def evaluate(
    run: RunPath,
    data: Data,
    target: Annotated[list[str] | None, typer.Option(help="A domain to look at; may be repeated.")] = None,
    num_steps: Annotated[int | None, typer.Option(help="Steps of the walk, if not the model's own.")] = None,
    views: Views = None,
    option: Option = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Accuracy with and without adaptation, for each domain and source, with a 95 % interval of the gain.

    Without --target it looks at the domains that the model was not trained on, or at all of them. The mean
    leaves out domains that it was trained on, unless there are no others. Views count as adaptation.
    """
    from sourceward.data import open_dataset
    from sourceward.model import evaluate as measure

    model = asked_model(run, device, num_steps, views)
    dataset = open_dataset(data, **reader_options(option))
    result = measure(model, dataset, target=target or (), progress=bars(quiet))
    if json:
        typer.echo(jsonlib.dumps(result, indent=2))
    else:
        off = not model.views and model.settings == model.settings.off()
        render(result, wide_console(), off, model.views)


def render(result: dict[str, Any], console: Console, off: bool = False, views: str = "") -> None:
    table = Table(title="Accuracy, %")
    for column in ("domain", "samples", "votes", "no adaptation", "adapted", "gain (95 % interval)"):
        table.add_column(column, justify="left" if column in ("domain", "votes") else "right")
    seen = [scores["trained_on"] for scores in result["domains"].values()]
    for name, scores in result["domains"].items():
        told = f"{name} (trained on)" if scores["trained_on"] else name
        table.add_row(escape(told), f"{scores['samples']:,}", "[bold]all[/bold]", *_cells(scores))
        for source, own in scores["per_source"].items():
            table.add_row("", "", escape(source), *_percent(own["unadapted"], own["adapted"]), "")
    if len(result["domains"]) > 1:
        table.add_section()
        of = "mean of the unseen" if any(seen) and not all(seen) else "mean"
        table.add_row(of, f"{result['mean']['samples']:,}", "all", *_cells(result["mean"]))
    console.print(table)
    if all(seen):
        console.print("The model was trained on these domains: on others it may be worse.", highlight=False)
    console.print(verdict(result["mean"], off, views), highlight=False)


def verdict(scores: dict[str, Any], off: bool = False, views: str = "") -> str:
    """One sentence for somebody who has to decide."""
    if off:
        return "Adaptation is off, so no answer changes: `fit` found no gain, or 0 steps were asked for."
    if scores["gain_low"] > 0:
        return "Adaptation helps here: the whole interval lies above 0."
    if scores["gain_high"] < 0:
        without = f"--num-steps 0{' --views none' if views else ''}"
        return f"Adaptation hurts here: the whole interval lies below 0. Predict with {without}."
    if scores["gain_low"] == scores["gain_high"] == 0:
        return "No difference: adaptation mends no wrong answer here, and spoils no right one."
    return "No clear difference: the interval holds 0. More labelled samples would narrow it."


def _cells(scores: dict[str, Any]) -> tuple[str, ...]:
    low, gain, high = (100 * scores[key] for key in ("gain_low", "gain", "gain_high"))
    return (*_percent(scores["unadapted"], scores["adapted"]), f"{gain:+.1f} ({low:+.1f} to {high:+.1f})")


def _percent(*shares: float) -> tuple[str, ...]:
    return tuple(f"{100 * share:.1f}" for share in shares)
