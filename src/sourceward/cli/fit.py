"""`sourceward fit DATA --out RUN`: train on labelled domains and write a model folder."""

import json as jsonlib
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sourceward.cli.options import Data, Device, Json, Option, Quiet, Threads, bars, reader_options

FREEZE_HINT = (
    "With --freeze, heads and energies train on fixed features in about a minute on a CPU. Start with it, "
    "above all with features of a foundation model."
)


def fit(
    data: Data,
    out: Annotated[str, typer.Option(help="Folder of the run; an unfinished run in it is resumed.")],
    target: Annotated[list[str] | None, typer.Option(help="A domain to leave out; may be repeated.")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="timm:NAME, torchvision:NAME, hf:NAME, or a folder.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="A file, `default` for the library's weights, `none` for random ones.")
    ] = "default",
    freeze: Annotated[
        bool, typer.Option("--freeze", help=f"Do not train the backbone. {FREEZE_HINT}")
    ] = False,
    preset: Annotated[
        str | None, typer.Option(help="Settings of an experiment: see `sourceward list presets`.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="A JSON file of settings.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; may be repeated.")
    ] = None,
    max_iter: Annotated[
        int | None,
        typer.Option(help="Iterations for heads and energies; --set finetune.max_iter=N for the backbone."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples of each source per iteration.")] = None,
    option: Option = None,
    device: Device = "auto",
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Accept classes that are missing from a source.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write metrics for TensorBoard.")
    ] = False,
    save_features: Annotated[
        str | None, typer.Option(help="Also write the features of all domains, target included, to an .npz.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on every domain but --target and write a model folder.

    First the backbone is fine-tuned as a classifier, then heads and energies are trained on its features.
    --set recipe=joint trains all of them together, as the paper does. To resume a killed run, give the same
    command again. Model selection uses held-out samples of the source domains and never the target. Start
    with --freeze.
    """
    from sourceward.data import open_dataset
    from sourceward.fitting import fit as run
    from sourceward.model.banks import check_bank
    from sourceward.model.banks import save_features as save_bank
    from sourceward.model.file import CONFIG
    from sourceward.training.configuration import parse_assignments, read_config

    if save_features is not None:
        check_bank(save_features)
    finished = (Path(out) / CONFIG).exists()
    flags = {"max_iter": max_iter, "batch_size": batch_size}
    changes: dict[str, Any] = read_config(config) if config else {}
    changes |= parse_assignments(settings or [])
    changes |= {name: value for name, value in flags.items() if value is not None}
    dataset = open_dataset(data, **reader_options(option))
    model = run(
        dataset,
        out=out,
        target=target or (),
        backbone=backbone,
        weights=None if weights.lower() == "none" else weights,
        freeze=freeze,
        preset=preset,
        settings=changes,
        device=device,
        seed=seed,
        allow_missing=allow_missing,
        tensorboard=tensorboard,
        progress=bars(quiet),
    )
    if save_features is not None:
        fraction = model.info["training"]["settings"]["validation_fraction"]
        save_bank(model, dataset, save_features, fraction=fraction, progress=bars(quiet))
    if json:
        typer.echo(jsonlib.dumps({"out": out, "kind": model.kind, **model.info}, indent=2))
    elif not quiet:
        again = [part for text in option or [] for part in ("--option", text)]
        _summary(model.info, out, shlex.join(["sourceward", "evaluate", out, data, *again]), finished)


def _summary(info: dict[str, Any], out: str, following: str, finished: bool) -> None:
    """Print accuracy on source validation, the expected gain, and the command to run next."""
    from sourceward.model.card import expected_gain_text

    console, metrics = Console(), info["metrics"]
    if "finetune" in metrics:
        console.print(_fine_tuned(metrics["finetune"], info["cost"]["finetune"]), highlight=False)
    table = Table(title=f"Source validation, iteration {metrics['iteration']} of {metrics['last_iteration']}")
    for column in ("source", "samples", "no adaptation", "adapted"):
        table.add_column(column, justify="left" if column == "source" else "right")
    for name, scores in metrics["per_source"].items():
        accuracies = (f"{100 * scores[key]:.1f}" for key in ("unadapted", "adapted"))
        table.add_row(escape(name), f"{scores['samples']:,}", *accuracies)
    console.print(table)
    console.print(expected_gain_text(info.get("expected_gain")), highlight=False, markup=False)
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
