"""The file of predictions: a row for every input, .csv or .jsonl, written whole or not at all."""

import csv
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from sourceward._util.errors import InputError
from sourceward.model.inputs import Failure
from sourceward.model.model import Prediction

UNREADABLE = "unreadable"

Write = Callable[[str, Prediction | Failure], None]


def writer_for(out: Path, sources: Sequence[str]) -> Callable[[TextIO], Write]:
    if out.suffix.lower() == ".jsonl":
        return _jsonl
    if out.suffix.lower() == ".csv":
        return lambda stream: _csv(stream, sources)
    raise InputError(f"Expected --out to end in .csv or .jsonl, but got '{out}'.")


def _jsonl(stream: TextIO) -> Write:
    def write(name: str, answer: Prediction | Failure) -> None:
        if isinstance(answer, Failure):
            row: dict[str, Any] = {"status": UNREADABLE, "reason": answer.reason}
        else:
            row = dict(vars(answer))
        stream.write(json.dumps({"input": name, **row}, ensure_ascii=False) + "\n")

    return write


def _csv(stream: TextIO, sources: Sequence[str]) -> Write:
    table = csv.writer(stream)
    parts = ("vote", "energy_before", "energy_after")
    columns = [f"{part}_{name}" for part in parts for name in sources]
    table.writerow(["input", "label", "probability", "status", *columns, "reason"])

    def write(name: str, answer: Prediction | Failure) -> None:
        if isinstance(answer, Failure):
            table.writerow([name, "", "", UNREADABLE, *[""] * len(columns), answer.reason])
            return
        energies = [f"{e[s]:.6g}" for e in (answer.energy_before, answer.energy_after) for s in sources]
        votes = [answer.votes[source] for source in sources]
        label, probability = answer.label, f"{answer.probability:.6g}"
        table.writerow([name, label, probability, answer.status, *votes, *energies, ""])

    return write


@contextmanager
def whole_or_nothing(path: str | Path) -> Iterator[TextIO]:
    """A text file that appears when it is complete."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            yield stream
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"Could not write '{path}': {error.strerror or error}.") from None
    finally:
        temporary.unlink(missing_ok=True)
