"""Find the samples to predict in files, folders, globs, tables and arrays."""

import csv
import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.errors import InputError
from sourceward.data.arrays import find_array, load_safetensors
from sourceward.data.table import find_column, read_parquet, separator_of
from sourceward.data.tree import IMAGE_SUFFIXES, StoredFile, is_image, read_tree

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
    kind: str, inputs: Sequence[str | Path], column: str | None = None, delimiter: str | None = None
) -> Iterator[Input]:
    """Yield the samples for a model that reads `kind`, in the order given; folders and globs are sorted.

    A single input must exist. Among several, a missing one becomes a sample with a `Failure`.
    """
    for given in map(str, inputs):
        paths = _expand(given, kind)
        if not paths and not Path(given).is_dir():
            if len(inputs) == 1:
                raise InputError(f"No such file: '{given}'. Expected files, folders or globs.")
            yield Input(given, Failure(given, "no such file"))
        for path in paths:
            if path.suffix.lower() in TABLES and kind != "features":
                yield from _table(path, kind, column, delimiter)
            elif kind == "image" and path.suffix.lower() == ".tar":
                yield from (Input(f"{path}:{name}", file) for name, file in read_tree(path).images().items())
            elif kind == "image":
                yield Input(str(path), _stored(path))
            elif kind == "text":
                yield from _lines(path)
            else:
                yield from _matrix(path)


def _expand(given: str, kind: str) -> list[Path]:
    """Return the files of a path, folder or glob; an empty list if nothing matches."""
    path = Path(given)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        images = [p for p in found if is_image(p.name)]
        if kind == "image" and not images:
            raise InputError(
                f"Expected images in '{given}', but found none of {', '.join(sorted(IMAGE_SUFFIXES))}."
            )
        return images if kind == "image" else found
    if path.exists():
        return [path]
    matches = [Path(name) for name in sorted(glob.glob(given, recursive=True))]
    return [match for match in matches if match.is_file()]


def _table(path: Path, kind: str, column: str | None, delimiter: str | None) -> Iterator[Input]:
    """Yield a sample for each row of a table."""
    for number, value in _column_values(path, "text" if kind == "text" else "path", column, delimiter):
        name = f"{path}:{number}"
        if kind == "text":
            yield Input(name, value)
        else:
            found = _stored(path.parent / value) if value.strip() else Failure(name, "its path is empty")
            yield Input(name, found)


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
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, delimiter=separator_of(path, delimiter))
            name = wanted(reader.fieldnames or [])
            yield from ((number, row[name] or "") for number, row in enumerate(reader, 2))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"Expected '{path}' to be a UTF-8 table, but {error}. Save it as UTF-8 CSV."
        ) from None


def _lines(path: Path) -> Iterator[Input]:
    """Yield a sample for each line of a text file that is not blank."""
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                yield Input(f"{path}:{number}", line)
    except UnicodeDecodeError:
        raise InputError(f"Expected a file of texts, one per line, but '{path}' is not UTF-8 text.") from None


def _matrix(path: Path) -> Iterator[Input]:
    """Yield a sample for each row of a feature file."""
    try:
        if path.suffix.lower() == ".safetensors":
            loaded: Any = load_safetensors(path)
        else:
            loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            loaded = loaded[find_array(loaded, "features", path)]
        rows = np.atleast_2d(loaded).astype(np.float32)
    except InputError:
        raise
    except Exception:  # zipfile, zlib and NumPy raise different exceptions for a file without arrays
        raise InputError(
            f"This model reads features, but '{path}' is no readable .npy of numbers, or .npz or "
            ".safetensors with `features`."
        ) from None
    for number, row in enumerate(rows):
        yield Input(f"{path}:{number}", row)


def _stored(path: Path) -> StoredFile:
    """Return a reference to a whole file; reading it fails if it does not exist."""
    return StoredFile(str(path), path.stat().st_size if path.is_file() else -1)
