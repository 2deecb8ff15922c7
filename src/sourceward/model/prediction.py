"""`Prediction`: the prediction for one input, with its details; and files of predictions, .csv or .jsonl."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.storage import atomic_file, check_target
from sourceward.adaptation.base import AdaptationResult
from sourceward.model.inputs import Failure


@dataclass(frozen=True)
class Prediction:
    """The prediction for one input, with its details."""

    label: str
    probability: float
    source_labels: dict[str, str]
    """The label that each source predicts."""
    energy_before: dict[str, float]
    energy_after: dict[str, float]
    status: str
    """A name in `adaptation.STATUS_TEXT`."""
    agreement: float
    """Share of the predictions of copies and sources that are the label."""
    trust: float
    """Estimated probability that the label is right."""
    probabilities: dict[str, float] | None = None
    """Of every class, on request."""


def explain(
    result: AdaptationResult, classes: Sequence[str], sources: Sequence[str], probabilities: bool = False
) -> list[Prediction]:
    """One `Prediction` for each row of a result, with the probabilities of all classes on request."""
    best, of_source = result.probabilities.argmax(1), result.per_source.argmax(2)

    def named(values: np.ndarray) -> dict[str, float]:
        return {name: float(value) for name, value in zip(sources, values)}

    return [
        Prediction(
            classes[best[row]],
            float(result.probabilities[row, best[row]]),
            {name: classes[label] for name, label in zip(sources, of_source[row])},
            named(result.energy_before[row]),
            named(result.energy_after[row]),
            str(result.status[row]),
            float(result.agreement[row]),
            float(result.trust[row]),
            dict(zip(classes, map(float, result.probabilities[row]))) if probabilities else None,
        )
        for row in range(len(result))
    ]


UNREADABLE = "unreadable"

Write = Callable[[str, Prediction | Failure], None]


def writer_for(out: Path, sources: Sequence[str], classes: Sequence[str] = ()) -> Callable[[TextIO], Write]:
    """Return the writer for a suffix: called with the open file, it returns a function that writes rows.

    A file that cannot be written is refused here, before any work.
    """
    check_target(out)
    if out.suffix.lower() == ".jsonl":
        return _jsonl
    if out.suffix.lower() == ".csv":
        return lambda stream: _csv(stream, sources, classes)
    raise InputError(f"Expected --out to end in .csv or .jsonl, or to name a folder, but got '{out}'.")


def _jsonl(stream: TextIO) -> Write:
    def write(name: str, result: Prediction | Failure) -> None:
        if isinstance(result, Failure):
            row: dict[str, Any] = {"status": UNREADABLE, "reason": result.reason}
        else:
            row = {name: value for name, value in vars(result).items() if value is not None}
        stream.write(json.dumps({"input": name, **row}, ensure_ascii=False) + "\n")

    return write


def _csv(stream: TextIO, sources: Sequence[str], classes: Sequence[str]) -> Write:
    """Write a table; `classes` are those whose probabilities have a column."""
    table = csv.writer(stream)
    parts = ("label", "energy_before", "energy_after")
    columns = [f"{part}_{name}" for part in parts for name in sources]
    columns += [f"probability_{name}" for name in classes]
    table.writerow(["input", "label", "probability", "trust", "agreement", "status", *columns, "reason"])

    def write(name: str, result: Prediction | Failure) -> None:
        if isinstance(result, Failure):
            table.writerow([name, "", "", "", "", UNREADABLE, *[""] * len(columns), result.reason])
            return
        energies = [f"{e[s]:.6g}" for e in (result.energy_before, result.energy_after) for s in sources]
        labels = [result.source_labels[source] for source in sources]
        shares = [f"{value:.6g}" for value in (result.probability, result.trust, result.agreement)]
        each = [f"{(result.probabilities or {})[name]:.6g}" for name in classes]
        table.writerow([name, result.label, *shares, result.status, *labels, *energies, *each, ""])

    return write


@contextmanager
def atomic_text_file(path: str | Path) -> Iterator[TextIO]:
    """Open a text file for writing that appears under its name when it is complete."""
    try:
        with atomic_file(path) as binary:
            stream = TextIOWrapper(binary, encoding="utf-8", newline="", write_through=True)
            yield stream
            stream.detach()
    except OSError as error:
        raise InputError(f"Could not write '{path}': {error.strerror or error}.") from None
