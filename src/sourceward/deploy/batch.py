"""Predict Parquet files and folders of images, shard by shard: a kill loses at most one shard."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.engines import ENGINES, run_jobs
from sourceward._util.errors import InputError, unknown_name
from sourceward._util.reading import printable
from sourceward._util.storage import open_folder
from sourceward._util.threads import available_cores
from sourceward.deploy.parquet import as_array, open_table, pyarrow, read_batches, write_table, written_key
from sourceward.deploy.predictor import Predictor, answer_columns, folder_id
from sourceward.deploy.rows import CHUNK, column_name
from sourceward.deploy.shards import ROWS, Shard, Unreadable, find_shards, part_of
from sourceward.model.items import PLURAL
from sourceward.model.prediction import UNREADABLE

INPUT = "input"
"""Column of the path, in predictions of image files."""


@dataclass(frozen=True)
class Job:
    """A shard, and everything it takes to predict it on any machine."""

    predictor: Predictor
    shard: Shard
    folder: str
    about: dict[str, Any]
    """The model and its settings, by which an output is recognised; `keep` are names of columns to carry
    over, with their names in the output."""


@dataclass
class Summary:
    """What has been done so far."""

    shards: int = 0
    """Predicted now."""
    skipped: int = 0
    """Complete already."""
    rows: int = 0
    unreadable: int = 0
    failed: list[dict[str, str]] = field(default_factory=list)
    """Inputs that could not be predicted, and why."""

    def add(self, outcome: dict[str, Any]) -> None:
        """Count what `predict_shard` returned."""
        if "reason" in outcome:
            self.failed.append({"input": outcome["input"], "reason": outcome["reason"]})
            return
        self.shards += not outcome["skipped"]
        self.skipped += outcome["skipped"]
        self.rows += outcome.get("rows", 0)
        self.unreadable += outcome.get("unreadable", 0)


def predict_shards(
    run: str | Path,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    column: str | None = None,
    root: str | None = None,
    keep: Sequence[str] = (),
    rows: int | None = None,
    part: tuple[int, int] = (1, 1),
    engine: str = "local",
    workers: int | None = None,
    num_steps: int | None = None,
    tta: str | None = None,
    device: str = "auto",
    probabilities: bool = False,
    on_shard: Callable[[dict[str, Any]], None] | None = None,
) -> Summary:
    """Write a Parquet file of predictions for each shard of the input that has none yet.

    Args:
        run: a model folder.
        inputs: Parquet files, folders of Parquet files or images, and globs.
        out: folder; its files mirror those of the input.
        column, root: see `Predictor`; without `root`, image paths are relative to their table.
        keep: columns of the input to carry over, `NAME` or `NAME=NEW_NAME`.
        rows: of an output at most; see `shards.ROWS` for the defaults.
        part: (i, n): this is the i-th of n machines that run the same command.
        engine: `local`, or `ray` for a cluster.
        workers: of a Ray cluster that is started on this machine; all cores when None.
        num_steps, tta, device, probabilities: see `Predictor`.
        on_shard: called with what was done for each shard.
    """
    from sourceward.model.file import read_model_config

    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    pyarrow(), open_folder(out)
    size = rows if rows is not None else ROWS[read_model_config(Path(run))["kind"]]
    given: dict[str, Any] = {"column": column, "root": root, "num_steps": num_steps, "tta": tta}
    given |= {"probabilities": True} if probabilities else {}  # older outputs are recognised without it
    predictor = Predictor(os.path.abspath(run), device=device, **given)
    kept, done = renamed(keep), Summary()
    about = {"model": folder_id(run), **given, "keep": kept}

    def jobs() -> Iterator[Job]:
        for shard in part_of(find_shards(inputs, size), *part):
            if isinstance(shard, Unreadable):
                done.add({"input": shard.table, "reason": shard.reason})
            else:
                yield Job(predictor, shard, os.path.abspath(out), about)

    count = 1 if engine == "local" else workers or available_cores()
    for _, outcome in run_jobs(predict_shard, jobs(), engine, count):
        if isinstance(outcome, BaseException):
            outcome = {"input": "a shard", "reason": f"the worker was lost ({type(outcome).__name__})"}
        done.add(outcome)
        if on_shard is not None:
            on_shard(outcome)
    if not (done.shards or done.skipped or done.failed) and part == (1, 1):
        raise InputError(f"Found neither Parquet files nor images in {', '.join(map(str, inputs))}.")
    return done


def renamed(keep: Sequence[str]) -> dict[str, str]:
    """Return the names of kept columns in the output by their names in the input.

    >>> renamed(["id", "label=truth"])
    {'id': 'id', 'label': 'truth'}
    """
    pairs = (text.partition("=") for text in keep)
    return {name.strip(): (new or name).strip() for name, _, new in pairs}


def predict_shard(job: Job) -> dict[str, Any]:
    """Predict a shard unless it is complete; returns what was done, or why the input cannot be predicted."""
    path, shard, start = Path(job.folder, job.shard.out), job.shard, time.monotonic()
    source = shard.table or f"{len(shard.images):,} images from '{shard.images[0]}' on"
    try:
        about = job.about | {"input": shard.key()}
        known = written_key(path)
        if known is not None and known != about:
            other = ", ".join(name for name in about if known.get(name) != about[name])
            raise InputError(
                f"'{path}' holds predictions of something else (different: {other}). Remove it, or write to "
                "another folder."
            )
        if known is not None:
            return {"out": shard.out, "skipped": True}
        rows, unreadable = (
            _predict_table(job, path, about) if shard.table else _predict_images(job, path, about)
        )
    except InputError as error:
        return {"input": source, "reason": str(error)}
    seconds = round(time.monotonic() - start, 3)
    return {"out": shard.out, "skipped": False, "rows": rows, "unreadable": unreadable, "seconds": seconds}


def _predict_table(job: Job, path: Path, about: dict[str, Any]) -> tuple[int, int]:
    """Predict rows of a Parquet file; returns how many, and how many of them are unreadable."""
    shard, keep, pa = job.shard, job.about["keep"], pyarrow()
    with open_table(shard.table) as file:
        known = file.schema_arrow
    model = job.predictor.model
    column = column_name(known.names, model.kind, job.predictor.column, f"'{shard.table}'")
    for name in keep:
        if name not in known.names:
            raise InputError(
                f"'{shard.table}' has no column {name!r} to keep; it has {', '.join(known.names)}."
            )
    own = prediction_schema(job.predictor)
    clash = [new for new in keep.values() if new in own.names]
    if clash:
        raise InputError(
            f"A kept column cannot have the name of a prediction's, {clash[0]!r}. Give it another: "
            f"--keep {clash[0]}=true_{clash[0]}."
        )
    schema = pa.schema([*(known.field(name).with_name(new) for name, new in keep.items()), *own])
    predictor = job.predictor.beside(shard.table)
    rows = unreadable = 0
    with write_table(path, schema, about) as write:
        for batch in read_batches(shard.table, [column, *keep], shard.row_groups, CHUNK[model.kind]):
            answer = predictor(as_array(batch.column(column), shard.table))
            write(pa.record_batch([batch.column(name) for name in keep] + _arrays(answer), schema=schema))
            rows += batch.num_rows
            unreadable += int((answer["status"] == UNREADABLE).sum())
    return rows, unreadable


def _predict_images(job: Job, path: Path, about: dict[str, Any]) -> tuple[int, int]:
    """Predict image files; returns how many, and how many of them are unreadable."""
    pa, model, images = pyarrow(), job.predictor.model, job.shard.images
    if model.kind != "image":
        raise InputError(f"This model reads {PLURAL[model.kind]}, but the input is images.")
    if job.about["keep"]:
        raise InputError("Image files have no columns to keep. Leave out --keep, or give a Parquet file.")
    schema = pa.schema([(INPUT, pa.string()), *prediction_schema(job.predictor)])
    unreadable, size = 0, CHUNK["image"]
    with write_table(path, schema, about) as write:
        for start in range(0, len(images), size):
            names = images[start : start + size]
            answer = job.predictor(np.array(names, dtype=object))
            shown = pa.array([printable(name) for name in names])
            write(pa.record_batch([shown, *_arrays(answer)], schema=schema))
            unreadable += int((answer["status"] == UNREADABLE).sum())
    return len(images), unreadable


def _arrays(answer: dict[str, np.ndarray]) -> list[Any]:
    """Return predictions as Arrow arrays; NaN, of an unreadable row, becomes null."""
    pa = pyarrow()
    return [pa.array(values, from_pandas=values.dtype.kind == "f") for values in answer.values()]


def prediction_schema(predictor: Predictor) -> Any:
    """Return the Arrow schema of what a `Predictor` returns."""
    pa, model = pyarrow(), predictor.model
    none = np.zeros(0, dtype=bool)
    empty = answer_columns(None, none, [], model.classes, model.sources, predictor.probabilities)
    return pa.schema([(n, pa.float32() if a.dtype.kind == "f" else pa.string()) for n, a in empty.items()])
