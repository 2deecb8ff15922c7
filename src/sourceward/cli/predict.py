"""`sourceward predict RUN INPUT... --out p.csv` or `--out FOLDER`: labels, probabilities and energies."""

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sourceward._util.errors import InputError, unknown_name
from sourceward.cli.options import (
    Allow,
    Device,
    Json,
    NumSteps,
    Option,
    Quiet,
    RunPath,
    Threads,
    Tta,
    bars,
    load_model,
    reader_options,
)

SHOWN = 5
PANEL = "Options of an output folder"
Keep = Annotated[
    str, typer.Option(help="Columns to carry over, by comma; NAME=NEW renames one.", rich_help_panel=PANEL)
]
Rows = Annotated[int | None, typer.Option(help="Rows of an output file, at most.", rich_help_panel=PANEL)]
Shard = Annotated[
    str,
    typer.Option(metavar="I/N", help="Predict the I-th of N parts, on N machines.", rich_help_panel=PANEL),
]
Engine = Annotated[
    str, typer.Option(help="local, or ray for a cluster (RAY_ADDRESS).", rich_help_panel=PANEL)
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Workers of a Ray cluster that is started here; all cores by default.", rich_help_panel=PANEL
    ),
]

State = Annotated[
    str | None,
    typer.Option(help="File of the state for --allow stream: read if it is there, written at the end."),
]
AbstainBelow = Annotated[
    float,
    typer.Option(metavar="T", help="Give no label where trust is below T; `evaluate` prints thresholds."),
]


def predict(
    run: RunPath,
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Images, folders, globs, .tar, text files, tables."),
    ],
    out: Annotated[str, typer.Option(help="A .csv or .jsonl file; or a folder, for Parquet files.")],
    column: Annotated[
        str | None, typer.Option(help="Column of a table that holds the texts, images or features.")
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(help="Folder that image paths in tables are relative to and must not leave."),
    ] = None,
    option: Option = None,
    num_steps: NumSteps = None,
    tta: Tta = None,
    allow: Allow = "sample",
    state: State = None,
    abstain_below: AbstainBelow = 0.0,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probability of every class.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
    keep: Keep = "",
    rows: Rows = None,
    shard: Shard = "1/1",
    engine: Engine = "local",
    jobs: Jobs = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict files. Each row has label, probability, status, and the label and energies of each source.

    An input that cannot be read gets a row with the reason, and the other inputs are predicted. For a table,
    `--option text=NAME` (or image=NAME) means `--column NAME`, so the options of `fit` can be repeated here.

    With a folder as --out, inputs are Parquet files or folders of images of any size: each input file becomes
    one Parquet file, large ones several. Run the same command again after a kill: complete files are skipped.

    The status of a row:

    - adapted: the prediction uses adaptation (Langevin steps, weights by energy or test-time augmentation).
    - not_adapted: the prediction is the classifier's own: adaptation is off, or the sample needed no copies.
    - energy_not_lower: no step lowered the energy of any source; the sample was not changed.
    - nonfinite: adaptation gave NaN or infinity; the prediction is the classifier's own.
    - abstained: trust is below --abstain-below; there is no label.
    - unreadable: the input could not be read; `reason` says why.
    """
    options = table_options(option)
    root = root or options.get("root")
    given: dict[str, Any] = {"num_steps": num_steps, "tta": tta, "device": device}
    stateful = check_allowed(allow, state, abstain_below, is_folder(out))
    if is_folder(out):
        from sourceward.deploy.batch import predict_shards
        from sourceward.deploy.shards import parse_part

        kept = [name for name in keep.split(",") if name.strip()]
        column = column or options.get("text") or options.get("image")
        part, on_shard = parse_part(shard), None if json or quiet else print_shard
        given |= {"column": column, "root": root, "keep": kept, "rows": rows, "part": part}
        given["probabilities"] = probabilities
        done = predict_shards(run, inputs, out, engine=engine, workers=jobs, on_shard=on_shard, **given)
        show_shards(out, done, json, quiet)
        return
    only = {"keep": keep, "rows": rows, "shard": shard != "1/1", "engine": engine != "local", "jobs": jobs}
    for name in (name for name, value in only.items() if value):
        raise InputError(f"Expected a folder as `--out` beside `--{name}`, but got '{out}'.")
    from sourceward._util.storage import check_targets
    from sourceward.model.predicting import predict_files

    check_targets(out, state)
    model = load_model(run, **given)
    read: dict[str, Any] = {"column": column or options.get(model.kind), "root": root}
    read |= {"delimiter": options.get("delimiter"), "probabilities": probabilities}
    stream = model.stream() if stateful else None
    if stream is not None and state is not None and Path(state).exists():
        stream.load(state)
    predicted, failures = predict_files(
        model, inputs, out, stream=stream, abstain_below=abstain_below, progress=bars(quiet), **read
    )
    if stream is not None and state is not None:
        stream.save(state)
    show_file(out, predicted, failures, json, quiet)


def check_allowed(allow: str, state: str | None, abstain_below: float, folder: bool) -> bool:
    """Refuse combinations that mean nothing; return whether a state is used."""
    if allow not in ("sample", "stream"):
        raise InputError(f"Expected --allow to be sample or stream for predictions, but got '{allow}'.")
    if state is not None and allow == "sample":
        raise InputError("Expected --allow stream beside --state: without a stream there is no state.")
    if not 0 <= abstain_below <= 1:
        raise InputError(f"Expected --abstain-below to be from 0 to 1, but got {abstain_below}.")
    if folder and (allow == "stream" or abstain_below):
        raise InputError(
            "Expected a .csv or .jsonl file as --out beside --allow stream and --abstain-below: a folder is "
            "predicted in parts, without order. Its column `trust` can be filtered afterwards."
        )
    return allow == "stream"


def is_folder(out: str) -> bool:
    """Return whether `--out` names a folder: one that is there, or a name without suffix.

    >>> is_folder("predictions.csv"), is_folder("predictions"), is_folder("v1.5/")
    (False, True, True)
    """
    return out.endswith("/") or Path(out).is_dir() or not Path(out).suffix


def show_file(out: str, predicted: int, failures: list[Any], json: bool, quiet: bool) -> None:
    """Print what went to one file, and the first inputs that could not be read."""
    if json:
        unreadable = [asdict(failure) for failure in failures]
        typer.echo(jsonlib.dumps({"out": out, "predicted": predicted, "unreadable": unreadable}))
        return
    if not quiet:
        typer.echo(f"Predicted {predicted:,} input{'s' * (predicted != 1)}; the rows are in {out}.", err=True)
    if failures:
        for failure in failures[:SHOWN]:
            typer.echo(f"unreadable {failure.name}: {failure.reason}", err=True)
        more = f" ({len(failures) - SHOWN:,} more not shown)" if len(failures) > SHOWN else ""
        typer.echo(
            f"{len(failures):,} of the inputs could not be read{more}; they are marked in {out}.", err=True
        )


def show_shards(out: str, done: Any, json: bool, quiet: bool) -> None:
    """Print what went to a folder; inputs that could not be predicted are an error at the end."""
    if json:
        typer.echo(jsonlib.dumps({"out": out, **asdict(done)}))
    elif not quiet:
        typer.echo(
            f"Predicted {done.rows:,} rows in {done.shards:,} files, {done.unreadable:,} rows unreadable; "
            f"{done.skipped:,} files were complete from an earlier run. All are in {out}.",
            err=True,
        )
    if done.failed:
        first = done.failed[0]
        raise InputError(
            f"{len(done.failed):,} inputs could not be predicted, the first {first['input']}: "
            f"{first['reason']}"
        )


def print_shard(outcome: dict[str, Any]) -> None:
    """Print one line for a shard that was predicted now, or failed."""
    if "reason" in outcome:
        typer.echo(f"FAILED {outcome['input']}: {outcome['reason']}", err=True)
    elif not outcome["skipped"]:
        speed = outcome["rows"] / max(outcome["seconds"], 1e-3)
        typer.echo(f"{outcome['out']}: {outcome['rows']:,} rows, {speed:,.0f} a second", err=True)


def table_options(option: list[str] | None) -> dict[str, str]:
    """Check the options of a table. Those that name label and domain columns are accepted and not used."""
    import inspect

    from sourceward.data.table import read_table

    options = reader_options(option)
    known = list(inspect.signature(read_table).parameters)[1:]
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known)
    return {name: str(value) for name, value in options.items() if value is not None}
