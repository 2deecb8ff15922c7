"""Find the samples to predict in files, folders, globs, tables and arrays."""

import csv
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.reading import check_regular, printable, read_regular, regular_size
from sourceward.data.arrays import find_array, load_numpy, load_safetensors
from sourceward.data.stored import StoredFile
from sourceward.data.table import find_column, locator, read_parquet, read_text_table, separator_of
from sourceward.data.tree import IMAGE_SUFFIXES, is_image, read_tree

TABLES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Input:
    """One sample to predict: its name in the output, and the file, text, feature vector or `Failure`."""

    name: str
    value: Any


@dataclass(frozen=True)
class Failure:
    """A sample that could not be read, and why."""

    name: str
    reason: str


def find_inputs(
    kind: str,
    inputs: Sequence[str | Path],
    column: str | None = None,
    delimiter: str | None = None,
    root: str | None = None,
) -> Iterator[Input]:
    """Yield the samples for a model that reads `kind`, in the order given; folders and globs are sorted.

    A single input must exist. Among several, a missing one becomes a sample with a `Failure`. The images that
    a table names may lie anywhere, unless `root` is given: then below that folder only.
    """
    for given in map(str, inputs):
        paths = _expand(given, kind)
        if not paths and not os.path.isdir(given):
            if len(inputs) == 1:
                raise InputError(f"No such file: '{given}'. Expected files, folders or globs.")
            yield Input(given, Failure(given, "no such file"))
        for path in paths:
            if path.suffix.lower() in TABLES and kind != "features":
                yield from _table(path, kind, column, delimiter, root)
            elif kind == "image" and path.suffix.lower() == ".tar":
                yield from (
                    Input(printable(f"{path}:{name}"), file)
                    for name, file in read_tree(path).images().items()
                )
            elif kind == "image":
                name, file = printable(str(path)), StoredFile(str(path), regular_size(path) or 0)
                yield Input(name, _checked(name, file))
            elif kind == "text":
                yield from _lines(path)
            else:
                yield from _matrix(path)


def _expand(given: str, kind: str) -> list[Path]:
    """Return the files of a path, folder or glob; an empty list if nothing matches."""
    path = Path(given)
    if os.path.isdir(path):
        found = sorted(p for p in path.rglob("*") if regular_size(p) is not None and p.name[:1] != ".")
        images = [p for p in found if is_image(p.name)]
        if kind == "image" and not images:
            raise InputError(
                f"Expected images in '{given}', but found none of {', '.join(sorted(IMAGE_SUFFIXES))}."
            )
        return images if kind == "image" else found
    if os.path.exists(path):
        return [path]
    matches = [Path(name) for name in sorted(glob.glob(given, recursive=True))]
    return [match for match in matches if regular_size(match) is not None]


def _table(
    path: Path, kind: str, column: str | None, delimiter: str | None, root: str | None
) -> Iterator[Input]:
    """Yield a sample for each row of a table."""
    locate = locator(path, root)
    for number, value in _column_values(path, "text" if kind == "text" else "path", column, delimiter):
        name = printable(f"{path}:{number}")
        if kind == "text":
            yield Input(name, value)
        elif not value.strip():
            yield Input(name, Failure(name, "its path is empty"))
        else:
            try:
                yield Input(name, _checked(name, locate(value)))
            except InputError as error:
                yield Input(name, Failure(name, str(error)))


def _checked(name: str, file: StoredFile) -> StoredFile | Failure:
    """Return the file if it is a regular one, else why it is not."""
    try:
        check_regular(file.path, "image_bytes")
    except InputError as error:
        return Failure(name, str(error))
    return file


def _column_values(
    path: Path, role: str, column: str | None, delimiter: str | None
) -> Iterator[tuple[int, str]]:
    """Yield the number of each row (in a text table, of its line) and its value in the wanted column."""

    def wanted(names: Sequence[str]) -> str:
        found = find_column(names, role, column, str(path))
        if found is None:
            raise InputError(
                f"'{path}' has no column {role!r}; it has {', '.join(names) or 'none'}. "
                "Select one with --column."
            )
        return found

    if path.suffix.lower() == ".parquet":
        columns = read_parquet(path)
        values = columns[wanted(list(columns))]
        yield from ((number, "" if v is None else str(v)) for number, v in enumerate(values, 1))
        return
    with read_text_table(path) as stream:
        reader = csv.DictReader(stream, delimiter=separator_of(path, delimiter))
        name = wanted(reader.fieldnames or [])
        yield from ((number, row[name] or "") for number, row in enumerate(reader, 2))


def _lines(path: Path) -> Iterator[Input]:
    """Yield a sample for each line of a text file that is not blank."""
    try:
        for number, line in enumerate(read_regular(path).decode("utf-8").splitlines(), 1):
            if line.strip():
                yield Input(printable(f"{path}:{number}"), line)
    except UnicodeDecodeError:
        raise InputError(f"Expected a file of texts, one per line, but '{path}' is not UTF-8 text.") from None


def _matrix(path: Path) -> Iterator[Input]:
    """Yield a sample for each row of a feature file."""
    wrong = (
        f"This model reads features, but '{path}' is no readable .npy of real numbers, or .npz or "
        ".safetensors with `features`."
    )
    loaded = load_safetensors(path) if path.suffix.lower() == ".safetensors" else load_numpy(path, wrong)
    name = None if isinstance(loaded, np.ndarray) else find_array(loaded, "features", path)
    rows = loaded if isinstance(loaded, np.ndarray) else None if name is None else loaded[name]
    if rows is None or not 1 <= rows.ndim <= 2 or rows.dtype.kind not in "fiu":
        raise InputError(wrong)
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinity, and refused
        rows = np.atleast_2d(rows).astype(np.float32)
    for number, row in enumerate(rows):
        yield Input(printable(f"{path}:{number}"), row)
