"""`sourceward fit DATA --out RUN`: train on labelled domains and write a model folder."""

import json as jsonlib
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sourceward.cli.options import (
    FREEZE_HINT,
    Allow,
    Backbone,
    Data,
    Device,
    Freeze,
    Json,
    Option,
    Preset,
    Quiet,
    Settings,
    Target,
    Threads,
    Weights,
    bars,
    reader_options,
)

Out = Annotated[str, typer.Option(help="Folder of the run; an unfinished run in it is resumed.")]
Config = Annotated[str | None, typer.Option(help="A JSON file of settings.")]
MaxIter = Annotated[
    int | None,
    typer.Option(help="Iterations for heads and energies; --set finetune.max_iter=N for the backbone."),
]
Members = Annotated[
    int | None, typer.Option(help="Fine-tunings whose weights are averaged into one backbone; 1 by default.")
]
BatchSize = Annotated[int | None, typer.Option(help="Samples of each source per iteration.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Accept classes that are missing from a source.")
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write metrics for TensorBoard.")]
SaveFeatures = Annotated[
    str | None, typer.Option(help="Also write the features of all domains, target included, to an .npz.")
]


def fit(
    data: Data,
    out: Out,
    target: Target = None,
    backbone: Backbone = None,
    weights: Weights = "default",
    freeze: Freeze = False,
    preset: Preset = None,
    config: Config = None,
    settings: Settings = None,
    max_iter: MaxIter = None,
    batch_size: BatchSize = None,
    members: Members = None,
    option: Option = None,
    device: Device = "auto",
    threads: Threads = None,
    seed: Seed = 0,
    allow_missing: AllowMissing = False,
    tensorboard: TensorBoard = False,
    save_features: SaveFeatures = None,
    allow: Allow = "sample",
    profile: Annotated[
        bool, typer.Option("--profile", help="Also print the seconds of each part of the fit.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on every domain but --target and write a model folder.

    First the backbone is fine-tuned as a classifier, then heads and energies are trained on its features;
    --set recipe=joint trains all of them together, as the paper does. Model selection uses held-out samples
    of the source domains and never the target. To resume a killed run, give the same command again.
    """
    from sourceward.data import open_dataset
    from sourceward.fitting import fit as run
    from sourceward.model import banks
    from sourceward.model.file import CONFIG
    from sourceward.training.run_folder import check_run_folder

    if save_features is not None:
        banks.check_bank(save_features)
    check_run_folder(out)
    finished = (Path(out) / CONFIG).exists()
    dataset = open_dataset(data, **reader_options(option))
    model = run(
        dataset,
        out=out,
        target=target or (),
        backbone=backbone,
        weights=weights,
        freeze=freeze,
        preset=preset,
        settings=_changes(
            config, settings, **{"max_iter": max_iter, "batch_size": batch_size, "finetune.members": members}
        ),
        device=device,
        seed=seed,
        allow_missing=allow_missing,
        tensorboard=tensorboard,
        progress=bars(quiet),
    )
    if save_features is not None:
        fraction = model.info["training"]["settings"]["validation_fraction"]
        banks.save_features(model, dataset, save_features, fraction=fraction, progress=bars(quiet))
    if profile:
        for name, seconds in model.info["cost"].get("parts", {}).items():
            typer.echo(f"{seconds:8.1f} s  {name}", err=True)
    if json:
        typer.echo(jsonlib.dumps({"out": out, "kind": model.kind, **model.info}, indent=2))
    elif not quiet:
        again = [part for text in option or [] for part in ("--option", text)]
        _summary(
            model.info, model.tta, out, shlex.join(["sourceward", "evaluate", out, data, *again]), finished
        )
        if allow in ("stream", "batch"):
            gains = model.adapter.stream_
            gain = "not estimated: it needs three sources" if gains is None else getattr(gains, allow)
            typer.echo(f"Expected gain where a {allow} is permitted: {gain}")


def _changes(config: str | None, settings: list[str] | None, **flags: int | None) -> dict[str, Any]:
    """Return the settings that were given: a file, then --set, then flags of their own."""
    from sourceward.training.configuration import parse_assignments, read_config

    changes = (read_config(config) if config else {}) | parse_assignments(settings or [])
    return changes | {name: value for name, value in flags.items() if value is not None}


def _summary(info: dict[str, Any], tta: str, out: str, following: str, finished: bool) -> None:
    """Print the expected accuracy, accuracy on source validation, the expected gain, and what to run next."""
    from sourceward.model.card import expected_accuracy_text, expected_gain_text

    console, metrics, expected = Console(), info["metrics"], info.get("expected_gain")
    console.print(expected_accuracy_text(expected), highlight=False, markup=False)
    if "finetune" in metrics:
        console.print(_fine_tuned(metrics["finetune"], info["cost"]["finetune"]), highlight=False)
    table = Table(title=f"Source validation, iteration {metrics['iteration']} of {metrics['last_iteration']}")
    for column in ("source", "samples", "no adaptation", "adapted"):
        table.add_column(column, justify="left" if column == "source" else "right")
    for name, scores in metrics["per_source"].items():
        accuracies = (f"{100 * scores[key]:.1f}" for key in ("unadapted", "adapted"))
        table.add_row(escape(name), f"{scores['samples']:,}", *accuracies)
    console.print(table)
    console.print(expected_gain_text(expected, tta), highlight=False, markup=False)
    when = "was trained already" if finished else f"took {metrics['seconds']:.0f} s"
    console.print(f"The model is in {escape(out)} and {when}. Next:", highlight=False)
    console.print(f"  {escape(following)}", highlight=False, soft_wrap=True)
    if info["training"]["backbone"] is not None and not info["training"]["freeze"]:
        console.print(FREEZE_HINT, highlight=False)


def _fine_tuned(scores: dict[str, Any], cost: dict[str, Any]) -> str:
    """Return a sentence on the accuracy and the cost of fine-tuning."""
    speed = f", {cost['images_per_second']:,.0f} samples/s" if cost["images_per_second"] else ""
    return (
        f"Fine-tuned backbone: {100 * scores['accuracy']:.1f} % on source validation with its linear head, "
        f"iteration {scores['iteration']} of {scores['last_iteration']} ({cost['seconds']:.0f} s{speed}, "
        f"{cost['peak_memory_mb']:,.0f} MB)."
    )
