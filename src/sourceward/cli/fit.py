"""`sourceward fit DATA --out RUN`: from labelled domains to a model folder."""

import json as jsonlib
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sourceward.cli.options import Data, Device, Json, Option, Quiet, bars, reader_options

FREEZE_HINT = (
    "With --freeze heads and energies train on fixed features in about a minute on a CPU: the place to "
    "start, with embeddings of a foundation model above all."
)


def fit(
    data: Data,
    out: Annotated[str, typer.Option(help="Folder of the run; an unfinished run in it goes on.")],
    target: Annotated[list[str] | None, typer.Option(help="A domain to leave out; may be repeated.")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="timm:resnet18, torchvision:..., hf:..., or a folder.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="A file, `default` for the library's, `none` for random.")
    ] = "default",
    freeze: Annotated[
        bool, typer.Option("--freeze", help=f"Do not train the backbone. {FREEZE_HINT}")
    ] = False,
    preset: Annotated[
        str | None, typer.Option(help="Settings of the paper: `sourceward list presets`.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="A JSON file of settings.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting.")
    ] = None,
    max_iter: Annotated[
        int | None,
        typer.Option(help="Iterations on heads and energies; --set finetune.max_iter=... on the backbone."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples of each source per such iteration.")] = None,
    option: Option = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Accept classes that a source lacks.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write metrics for TensorBoard, too.")
    ] = False,
    save_features: Annotated[
        str | None, typer.Option(help="Write features of all domains, the target's too, to an .npz.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on every domain but --target and write a model folder.

    The backbone is fine-tuned first, as a classifier; heads and energies then train on its features.
    --set recipe=joint trains all of them together, as the paper does. A run that was killed goes on where it
    was when the same command is given again. Model selection looks at held-out samples of the source
    domains, never at the target. Start with --freeze.
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
    from sourceward.estimator import ExpectedGain
    from sourceward.model.card import views_text
    from sourceward.validation.leave_one_domain_out import FEWEST_SOURCES

    console, metrics = Console(), info["metrics"]
    if "finetune" in metrics:
        console.print(_fine_tuned(metrics["finetune"], info["cost"]["finetune"]), highlight=False)
    table = Table(title=f"Source validation, iteration {metrics['iteration']} of {metrics['last_iteration']}")
    for column in ("source", "samples", "no adaptation", "adapted"):
        table.add_column(column, justify="left" if column == "source" else "right")
    for name, scores in metrics["per_source"].items():
        cells = (f"{100 * scores[key]:.1f}" for key in ("unadapted", "adapted"))
        table.add_row(escape(name), f"{scores['samples']:,}", *cells)
    console.print(table)
    if info.get("expected_gain"):
        told = str(ExpectedGain(**info["expected_gain"]))
        console.print(f"Will adaptation help? {told[0].upper()}{told[1:]}.", highlight=False, markup=False)
    elif len(info["data"]["sources"]) < FEWEST_SOURCES:
        few = f"Will adaptation help? {FEWEST_SOURCES} sources or more could tell, and labelled samples:"
        console.print(f"{few} `evaluate`.", highlight=False)
    if info.get("tta_gain"):
        console.print(f"Other pictures? {views_text(info['tta_gain'])}", highlight=False, markup=False)
    when = "it was there already" if finished else f"after {metrics['seconds']:.0f} s"
    console.print(f"Model in {escape(out)}, {when}. Next:", highlight=False)
    console.print(f"  {escape(following)}", highlight=False, soft_wrap=True)
    if info["training"]["backbone"] is not None and not info["training"]["freeze"]:
        console.print(FREEZE_HINT, highlight=False)


def _fine_tuned(scores: dict[str, Any], cost: dict[str, Any]) -> str:
    speed = f", {cost['images_per_second']:,.0f} samples/s" if cost["images_per_second"] else ""
    return (
        f"Fine-tuned backbone: {100 * scores['accuracy']:.1f} % on source validation with its linear head, "
        f"iteration {scores['iteration']} of {scores['last_iteration']} ({cost['seconds']:.0f} s{speed}, "
        f"{cost['peak_memory_mb']:,.0f} MB)."
    )
