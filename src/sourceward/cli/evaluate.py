"""`sourceward evaluate RUN DATA`: measure what adaptation changes on labelled domains."""

import json as jsonlib
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sourceward._util.errors import InputError
from sourceward.cli.options import (
    Allow,
    Data,
    Device,
    Json,
    NumSteps,
    Option,
    RunPath,
    Threads,
    Tta,
    bars,
    load_model,
    reader_options,
    wide_console,
)

MOST_COLUMNS = 12
"""Classes of a confusion matrix that a terminal shows; `--json` has larger ones."""


def evaluate(
    run: RunPath,
    data: Data,
    target: Annotated[list[str] | None, typer.Option(help="A domain to evaluate; may be repeated.")] = None,
    num_steps: NumSteps = None,
    tta: Tta = None,
    allow: Allow = "sample",
    option: Option = None,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress bars.")] = False,
    save: Annotated[
        bool,
        typer.Option(help="Keep the result and a few samples in RUN/evaluations, for `sourceward report`."),
    ] = True,
) -> None:
    """Measure accuracy with and without adaptation, per domain and source, with a 95 % interval of the gain.

    Without --target, it evaluates the domains that the model was not trained on, or all if there are no
    others. Domains that the model was trained on do not count in the mean, unless there are no others.
    Test-time augmentation is part of adaptation.

    Further tables have the share of the largest class, balanced accuracy, macro-F1 and the confusion matrix;
    and the error of the samples that are answered where those of least trust are left out, with the
    thresholds for `predict --abstain-below` that leave out as many samples of the held-out sources.
    """
    from sourceward.bench.protocol.provenance import command, versions
    from sourceward.data import open_dataset
    from sourceward.model import evaluate as measure
    from sourceward.model.evaluations import write_evaluation

    model, begin = load_model(run, device, num_steps, tta), time.monotonic()
    dataset = open_dataset(data, **reader_options(option))
    options: dict[str, Any] = {"target": target or (), "allow": allow, "progress": bars(quiet)}
    result = measure(model, dataset, examples=save, **options)
    source = {"command": command(sys.argv), "versions": versions()}
    if save:
        seconds = round(time.monotonic() - begin, 2)
        try:
            write_evaluation(run, model, dataset, result, allow, seconds=seconds, **source)
        except (InputError, OSError) as error:
            typer.echo(f"The evaluation was not kept in '{run}': {error}", err=True)
    for scores in result["domains"].values():
        scores.pop("examples", None)
    if json:
        typer.echo(jsonlib.dumps(result | source, indent=2))
        return
    off = not model.tta and model.settings == model.settings.off() and allow == "sample"
    render(result, wide_console(), off, model.tta)
    own, expected = num_steps is None and tta is None and allow == "sample", estimate_for(model)
    if own and expected is not None:
        typer.echo(compared(expected, result))
    if save and Path(run, "evaluations").is_dir():
        typer.echo(f"The page of this run: sourceward report {shlex.quote(run)}")


def estimate_for(model: Any) -> Any:
    """Return the expected gain; None where there is none, or where it is for other transforms."""
    expected = model.adapter.expected_gain_
    return None if expected is None or expected.tta != model.tta else expected


def compared(expected: Any, result: dict[str, Any]) -> str:
    """Return what was expected, what is estimated from unlabeled samples, and what was measured."""
    mean = result["mean"]
    parts = [
        f"{name} {100 * here['gain']:+.1f} ({100 * here['low']:+.1f} to {100 * here['high']:+.1f})"
        for name, scores in result["domains"].items()
        if not scores["trained_on"] and (here := scores.get("estimated"))
    ]
    more = f"Estimated from the share of labels that change: gain {', '.join(parts)}. " if parts else ""
    return (
        f"Expected: accuracy {expected.accuracy_text}, gain {100 * expected.gain:+.1f} points. {more}"
        f"Measured: accuracy {100 * mean['adapted']:.1f} %, gain {100 * mean['gain']:+.1f}."
    )


def render(result: dict[str, Any], console: Console, off: bool = False, tta: str = "") -> None:
    """Print a row for each domain and each source, and one sentence on what the numbers show."""
    table = Table(title="Accuracy, %")
    for column in ("domain", "samples", "source", "no adaptation", "adapted", "gain (95 % interval)"):
        table.add_column(column, justify="left" if column in ("domain", "source") else "right")
    seen = [scores["trained_on"] for scores in result["domains"].values()]
    for name, scores in result["domains"].items():
        shown = f"{name} (trained on)" if scores["trained_on"] else name
        table.add_row(escape(shown), f"{scores['samples']:,}", "[bold]all[/bold]", *_cells(scores))
        for source, own in scores["per_source"].items():
            table.add_row("", "", escape(source), *_percent(own["unadapted"], own["adapted"]), "")
    if len(result["domains"]) > 1:
        table.add_section()
        mean = "mean of the unseen" if any(seen) and not all(seen) else "mean"
        table.add_row(mean, f"{result['mean']['samples']:,}", "all", *_cells(result["mean"]))
    console.print(table)
    if all(seen):
        console.print(
            "The model was trained on these domains; expect lower accuracy on others.", highlight=False
        )
    console.print(verdict(result["mean"], off, tta), highlight=False)
    console.print(balance_table(result["domains"]))
    if result["mean"]["adapted"] <= result["mean"]["majority"]:
        console.print("Always predicting the largest class would be as accurate.", highlight=False)
    confusion = confusion_table(result)
    if confusion is not None:
        console.print(confusion)
    console.print(risk_table(result["domains"]))
    if "stopped" in result["mean"]:
        from sourceward.validation.expected_gain import stopped_text

        shares = stopped_text(result["mean"]["stopped"], tta, "of the samples")
        passes = f"{result['mean']['passes']:.2f} passes of the backbone for each sample"
        console.print(f"{shares}; {passes}.", highlight=False)


def balance_table(domains: dict[str, Any]) -> Table:
    """Return the share of the largest class, balanced accuracy and macro-F1: a row for each domain."""
    table = Table(title="Metrics that count each class the same, %")
    names = ("balanced accuracy", "balanced, adapted", "macro-F1", "macro-F1, adapted")
    for column in ("domain", "largest class", *names):
        table.add_column(column, justify="left" if column == "domain" else "right")
    for name, own in domains.items():
        pairs = (*own["balanced_accuracy"].values(), *own["macro_f1"].values())
        table.add_row(escape(name), *_percent(own["majority"], *pairs))
    return table


def confusion_table(result: dict[str, Any]) -> Table | None:
    """Return the confusion matrix with adaptation, of all domains together; None where it is too wide."""
    classes, domains = result["classes"], result["domains"]
    if len(classes) > MOST_COLUMNS:
        return None
    each = [own["confusion"]["adapted"] for own in domains.values()]
    table = Table(title="Confusion, adapted", caption="rows: true class")
    for column in ("class", *classes):
        table.add_column(escape(column), justify="left" if column == "class" else "right")
    for row, name in enumerate(classes):
        table.add_row(
            escape(name), *(str(sum(counts[row][i] for counts in each)) for i in range(len(classes)))
        )
    return table


def risk_table(domains: dict[str, Any]) -> Table:
    """Return the error at each coverage: a row for each domain, and one for the thresholds of trust."""
    trust = {name: scores["trust"] for name, scores in domains.items()}
    first = next(iter(trust.values()))
    table = Table(title="Error of the most trusted samples, %")
    table.add_column("answered")
    for share in first["risk"]:
        table.add_column(f"{100 * float(share):g} %", justify="right")
    table.add_column("calibration error: confidence, trust", justify="right")
    for name, own in trust.items():
        gaps = ", ".join(_percent(*own["calibration_error"].values()))
        table.add_row(escape(name), *_percent(*own["risk"].values()), gaps)
    if first["thresholds"]:
        table.add_section()
        table.add_row("threshold of trust", *(f"{t:.2f}" for t in first["thresholds"].values()), "")
    return table


def verdict(scores: dict[str, Any], off: bool = False, tta: str = "") -> str:
    """Return one sentence on whether adaptation helps."""
    if off:
        why = "`fit` found no safe gain or had too few sources, or --num-steps is 0"
        return f"Adaptation is off, so no prediction changes: {why}."
    if scores["gain_low"] > 0:
        return "Adaptation helps here: the interval of the gain is above 0."
    if scores["gain_high"] < 0:
        without = f"--num-steps 0{' --tta none' if tta else ''}"
        return f"Adaptation hurts here: the interval of the gain is below 0. Predict with {without}."
    if scores["gain_low"] == scores["gain_high"] == 0:
        return "No difference: adaptation corrects no prediction here and makes none wrong."
    return "No clear difference: the interval contains 0. More labelled samples would narrow it."


def _cells(scores: dict[str, Any]) -> tuple[str, ...]:
    low, gain, high = (100 * scores[key] for key in ("gain_low", "gain", "gain_high"))
    return (*_percent(scores["unadapted"], scores["adapted"]), f"{gain:+.1f} ({low:+.1f} to {high:+.1f})")


def _percent(*shares: float) -> tuple[str, ...]:
    return tuple(f"{100 * share:.1f}" for share in shares)
