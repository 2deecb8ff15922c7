"""From files of predictions to a report of drift, window by window."""

import csv
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.values import short
from sourceward.data.table import read_text_table
from sourceward.deploy.batch import predict_shards
from sourceward.deploy.drift import Reference, alarms_needed
from sourceward.deploy.parquet import open_table, read_batches, to_numpy, written_key
from sourceward.deploy.predictor import load_model
from sourceward.deploy.shards import Unreadable, find_shards
from sourceward.model import Model
from sourceward.model.predicting import predict_files

WINDOW = 1000
FEWEST = 20
"""Rows of a window, at least; fewer at the end are left out."""

READ = 65_536
"""Rows that are read at a time."""

TAIL = 0.99
CONFIDENCE = "confidence"


def measure_drift(
    run: str | Path,
    inputs: Sequence[str | Path],
    *,
    window: int = WINDOW,
    level: float = 0.05,
    device: str = "auto",
    seed: int = 0,
) -> dict[str, Any]:
    """Test windows of predictions for drift from the sources.

    Args:
        run: a model folder.
        inputs: predictions of this model, .parquet or .csv files or folders of Parquet files; or what
            `predict` takes, which is then predicted.
        window: rows of each window, in the order of the input.
        level: share of windows without shift that alarm.
        device: for data that has to be predicted.
        seed: of the bootstrap.
    """
    if window < FEWEST:
        raise InputError(f"Expected `--window` to be {FEWEST} or more, but got {window}.")
    if not 0 < level <= 0.5:
        raise InputError(f"Expected `--level` to lie above 0 and up to 0.5, but got {level}.")
    model = load_model(run, "cpu")
    held_out = model.network.held_out
    if held_out is None:
        raise InputError(
            f"'{run}' has no statistics of held-out source samples. Fit it again: `fit` writes them."
        )
    rows, source = held_out[:, :-1].numpy(), held_out[:, -1].numpy()
    given = paths = [str(path) for path in inputs]
    with tempfile.TemporaryDirectory() as folder:
        if not _are_answers(paths):
            paths = [_predicted(run, paths, device, folder)]
        files, comparable = _answer_files(paths)
        tested = [*range(len(model.sources) + comparable)]
        groups = [rows[source == number][:, tested] for number in range(len(model.sources))]
        own = [group for group in groups if len(group)]
        reference = Reference(own, level, seed)
        parts = _windows((part for file in files for part in _read(file, model)), window)
        windows = [_window(model, reference, rows, source, part, bad, tested) for part, bad in parts]
    if not windows:
        raise InputError(
            f"Expected {FEWEST} or more predictions, but found fewer in {', '.join(given)}. Collect more."
        )
    alarms, needed = sum(w["alarm"] for w in windows), alarms_needed(len(windows), level)
    return {
        "sources": list(model.sources),
        "statistics": [*(f"energy_{name}" for name in model.sources), CONFIDENCE][: len(tested)],
        "reference_rows": {name: len(group) for name, group in zip(model.sources, groups)},
        "level": level,
        "window": window,
        "alarms": alarms,
        "alarms_needed": needed,
        "alarm": alarms >= needed,
        "windows": windows,
    }


def _window(
    model: Model,
    reference: Reference,
    rows: np.ndarray,
    source: np.ndarray,
    part: np.ndarray,
    unreadable: int,
    tested: list[int],
) -> dict[str, Any]:
    """Test one window, and describe it beside the mixture of sources that it is nearest to."""
    found = reference.test(part[:, tested])
    present = [number for number in range(len(model.sources)) if (source == number).any()]
    shares = dict(zip((model.sources[number] for number in present), found.shares))
    names = [*(f"energy_{name}" for name in model.sources), CONFIDENCE]
    limits = [np.quantile(rows[source == number, number], TAIL) for number in present]
    above = part[:, present] > np.array(limits)
    expected = sum(w * rows[source == n].mean(0) for w, n in zip(found.shares, present))
    change = part.mean(0) - expected
    return {
        "rows": len(part),
        "unreadable": unreadable,
        "alarm": found.alarm,
        "p_value": round(found.p_value, 4),
        "critical": round(found.critical, 4),
        "ks": {names[number]: round(float(d), 4) for number, d in zip(tested, found.distances)},
        "shares": {name: round(float(share), 3) for name, share in shares.items()},
        "above_99": {
            **{model.sources[n]: round(float(a), 4) for n, a in zip(present, above.mean(0))},
            "all": round(float(above.all(1).mean()), 4),
        },
        "confidence": round(float(part[:, -2].mean()), 4),
        "confidence_change": round(float(change[-2]), 4),
        "agreement": round(float(part[:, -1].mean()), 4),
        "agreement_change": round(float(change[-1]), 4),
    }


def _windows(parts: Iterator[tuple[np.ndarray, int]], size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield windows of `size` rows and how many unreadable rows came with them; a short one at the end."""
    waiting: list[np.ndarray] = []
    unreadable = 0
    for part, bad in parts:
        waiting.append(part)
        unreadable += bad
        rows = np.concatenate(waiting)
        while len(rows) >= size:
            yield rows[:size], unreadable
            rows, unreadable = rows[size:], 0
        waiting = [rows]
    rest = np.concatenate(waiting) if waiting else np.zeros((0, 1))
    if len(rest) >= FEWEST:
        yield rest, unreadable


def _are_answers(paths: Sequence[str]) -> bool:
    """Whether the first file holds predictions."""
    first = paths[0]
    if os.path.isdir(first) or first.lower().endswith(".parquet") or "*" in first:
        shard = next(find_shards([first], 2**62), None)
        if isinstance(shard, Unreadable):
            raise InputError(shard.reason)
        if shard is None or not shard.table:
            return False
        with open_table(shard.table) as file:
            names = file.schema_arrow.names
    elif first.lower().endswith(".csv") and os.path.exists(first):
        with read_text_table(Path(first)) as stream:
            names = next(csv.reader(stream), [])
    else:
        return False
    return any(name.startswith("energy_before_") for name in names)


def _predicted(run: str | Path, paths: Sequence[str], device: str, folder: str) -> str:
    """Predict data to a temporary folder or file; returns its path."""
    tables = all(os.path.isdir(path) or path.lower().endswith(".parquet") for path in paths)
    if tables:
        done = predict_shards(run, paths, folder, device=device)
        if done.failed:
            raise InputError(f"{done.failed[0]['input']}: {done.failed[0]['reason']}")
        return folder
    predict_files(load_model(run, device), paths, f"{folder}/answers.csv")
    return f"{folder}/answers.csv"


def _answer_files(paths: Sequence[str]) -> tuple[list[str], bool]:
    """Return files of predictions, and whether their confidence can be compared: not with other settings."""
    files, comparable = [], True
    for path in paths:
        if path.lower().endswith(".csv"):
            files.append(path)
            continue
        for shard in find_shards([path], 2**62):
            if isinstance(shard, Unreadable):
                raise InputError(shard.reason)
            about = written_key(Path(shard.table)) or {} if shard.table else {}
            comparable &= about.get("num_steps") is None and about.get("tta") is None
            files += [shard.table] if shard.table else []
    return files, comparable


def _read(path: str, model: Model) -> Iterator[tuple[np.ndarray, int]]:
    """Yield energies, confidence and agreement (rows, sources + 2) of readable rows, and the other rows."""
    wanted = [*(f"energy_before_{name}" for name in model.sources), "probability", "agreement"]
    for columns in _columns(path, wanted):
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise InputError(
                f"Expected predictions of this model in '{path}', but it has no column {missing[0]!r}. Were "
                "they made by another model?"
            )
        values = np.column_stack([_numbers(columns[name], name, path) for name in wanted])
        fine = np.isfinite(values).all(1)
        yield values[fine], int((~fine).sum())


def _numbers(column: np.ndarray, name: str, path: str) -> np.ndarray:
    """A column as float32."""
    try:
        if column.dtype.kind in "mM":
            raise ValueError("it holds dates")
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinity, and unreadable
            return column.astype(np.float32)
    except (ValueError, TypeError) as error:
        raise InputError(f"Expected numbers in column {name!r} of '{path}', but {short(error)}.") from None


def _columns(path: str, wanted: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the wanted columns that a file has, some rows at a time; an empty number is NaN."""
    if path.lower().endswith(".csv"):
        with read_text_table(Path(path)) as stream:
            reader = csv.DictReader(stream)
            while rows := [row for _, row in zip(range(READ), reader)]:
                names = [name for name in wanted if name in rows[0]]
                yield {name: np.array([row[name] or "nan" for row in rows]) for name in names}
        return
    with open_table(path) as file:
        names = [name for name in wanted if name in file.schema_arrow.names]
    for batch in read_batches(path, names, (), READ):
        yield {name: to_numpy(batch.column(name), path) for name in names}
