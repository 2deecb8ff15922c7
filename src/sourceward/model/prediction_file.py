"""The file of predictions, .csv or .jsonl: a row for every input, written atomically."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from sourceward._util.errors import InputError
from sourceward._util.storage import atomic_file, check_target
from sourceward.model.inputs import Failure
from sourceward.model.prediction import Prediction

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
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as binary:
            stream = TextIOWrapper(binary, encoding="utf-8", newline="", write_through=True)
            yield stream
            stream.detach()
    except OSError as error:
        raise InputError(f"Could not write '{path}': {error.strerror or error}.") from None
