"""Readers of tables with one row per sample: CSV, TSV, Parquet. Columns are found by name."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from sourceward._util.errors import InputError
from sourceward._util.reading import check_expanded, check_regular, inside, open_regular, regular_size
from sourceward.data.dataset import DomainDataset, Problem, build
from sourceward.data.stored import StoredFile

# Accepted column names, in order of preference.
SYNONYMS = {
    "domain": ("domain", "domains", "event", "site", "environment", "env", "domain_name", "hospital",
               "location", "device", "style", "camera", "source"),
    "label": ("label", "labels", "class", "class_name", "category", "y", "target"),
    "text": ("text", "texts", "sentence", "tweet", "content", "body", "review", "document", "message"),
    "path": ("path", "image_path", "file_path", "filepath", "file_name", "filename", "file", "image", "img"),
    "id": ("id", "ids", "sample_id", "tweet_id", "uid", "name"),
    "split": ("split", "fold", "subset", "partition"),
}  # fmt: skip
SPLITS = {"train": "train", "training": "train"} | dict.fromkeys(
    ("val", "valid", "validation", "dev", "crossval"), "val"
)


def read_table(
    path: str | Path,
    *,
    domain: str | None = None,
    label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    id: str | None = None,
    split: str | None = None,
    delimiter: str | None = None,
    root: str | None = None,
) -> DomainDataset:
    """Read texts, or images by path; the options name columns.

    A path is relative to the table and may lead anywhere. With `root` it is relative to that folder, and must
    lie in it.
    """
    columns = _read_columns(Path(path), delimiter)
    given = {"domain": domain, "label": label, "text": text, "path": image, "id": id, "split": split}
    first = 1 if Path(path).suffix.lower() == ".parquet" else 2  # the header is row 1
    return from_columns(columns, given, name=str(path), locate=locator(path, root), first=first)


def locator(table: str | Path, root: str | Path | None) -> Callable[[str], StoredFile]:
    """Return the function from a path in a table to a file, which may be missing (size 0)."""
    if root is not None and not os.path.isdir(root):
        raise InputError(f"Expected `root` to be the folder of the images, but found no folder '{root}'.")
    base = Path(table).parent if root is None else Path(root)

    def locate(path: str) -> StoredFile:
        if root is not None and not inside(root, base / path):
            raise InputError(f"{path!r} of '{table}' is outside of the root '{root}'.")
        return StoredFile(str(base / path), regular_size(base / path) or 0)

    return locate


def from_columns(
    columns: dict[str, Sequence[Any]],
    given: dict[str, str | None],
    *,
    name: str,
    locate: Callable[[str], StoredFile],
    first: int = 1,
) -> DomainDataset:
    """Build a dataset from columns; `given` names columns by role, `locate` finds the file of a path, `first`
    is the number of the first row."""
    domain, label = (need_column(columns, role, given[role], name) for role in ("domain", "label"))
    role, content = content_column(columns, given, name)
    rows, problems = complete_rows(
        {"domain": columns[domain], "label": columns[label], role: columns[content]}, first
    )
    if not rows:
        raise InputError(f"'{name}' has no row with a value for each of {domain}, {label} and {content}.")
    items: list[Any] = [str(columns[content][row]) for row in rows]
    if role == "path":
        rows, items, lost = _existing_files(
            rows, [locate(item) for item in items], items, columns[domain], name
        )
        problems += lost
    split, note = read_split(columns, given["split"], rows, name)
    id_column = find_column(columns, "id", given["id"], name) or (content if role == "path" else None)
    ids = [str(columns[id_column][row]) for row in rows] if id_column else []
    if len(set(ids)) < len(rows):  # absent, or not the name of one row
        ids = [f"row{row:07d}" for row in rows]
    return build(
        "image" if role == "path" else "text",
        tuple(items),
        [str(columns[label][row]) for row in rows],
        [str(columns[domain][row]) for row in rows],
        ids,
        split=split,
        problems=problems + note,
        name=name,
    )


def _existing_files(
    rows: list[int], files: list[StoredFile], paths: list[str], domains: Sequence[Any], name: str
) -> tuple[list[int], list[Any], list[Problem]]:
    """Return the rows whose image exists, these images, and a problem for each other row."""
    if not any(file.size for file in files):
        raise InputError(
            f"None of the {len(files):,} images that '{name}' lists can be found; the first is "
            f"'{files[0].path}'. Paths are relative to the table: move it, or write the paths from there."
        )
    problems = []
    for file, path, row in zip(files, paths, rows):
        if not file.size:
            kind = "empty_file" if os.path.exists(file.path) else "missing_file"
            problems.append(
                Problem(kind, path, f"{path!r} is missing, empty or no regular file.", str(domains[row]))
            )
    kept = [(row, file) for row, file in zip(rows, files) if file.size]
    return [row for row, _ in kept], [file for _, file in kept], problems


def need_column(columns: Iterable[str], role: str, given: str | None, where: str) -> str:
    """Return the column for `role` as `find_column` does, or raise an error."""
    found = find_column(columns, role, given, where)
    if found is None:
        raise InputError(
            f"'{where}' has no {role} column: expected one named {', '.join(SYNONYMS[role][:4])}, ..., found "
            f"{', '.join(columns)}. Rename it, or name it: --option {role}=COLUMN."
        )
    return found


def find_column(columns: Iterable[str], role: str, given: str | None, where: str) -> str | None:
    """Return the column for `role`: the given one, else the first with an accepted name, else None."""
    present = list(columns)
    if given is not None:
        if given not in present:
            raise InputError(f"'{where}' has no column {given!r}. Its columns: {', '.join(present)}.")
        return given
    lowered = {column.strip().lower(): column for column in reversed(present)}
    return next((lowered[name] for name in SYNONYMS[role] if name in lowered), None)


def content_column(columns: Iterable[str], given: dict[str, str | None], where: str) -> tuple[str, str]:
    """Return "text" or "path", and its column."""
    present = list(columns)
    asked = [role for role in ("text", "path") if given[role]]
    found: dict[str, str] = {}
    for role in asked or ("text", "path"):
        column = find_column(present, role, given[role], where)
        if column is not None:
            found[role] = column
    if len(found) == 1:
        return next(iter(found.items()))
    if not found:
        raise InputError(
            f"'{where}' has neither a text nor a path column; its columns: {', '.join(present)}. "
            "Name one: --option text=COLUMN or --option image=COLUMN."
        )
    raise InputError(
        f"'{where}' has both a text column {found['text']!r} and a path column {found['path']!r}. "
        "Choose with --option text=COLUMN or --option image=COLUMN."
    )


def complete_rows(cells: dict[str, Sequence[Any]], first: int = 1) -> tuple[list[int], list[Problem]]:
    """Return the rows with a value in every column, and a problem for each other row."""
    rows: list[int] = []
    problems: list[Problem] = []
    for row, values in enumerate(zip(*cells.values())):
        empty = [role for role, value in zip(cells, values) if value is None or not str(value).strip()]
        if empty:
            message = f"Row {first + row} has no {' and no '.join(empty)}."
            problems.append(Problem("empty_cell", f"row {first + row}", message))
        else:
            rows.append(row)
    return rows, problems


def read_split(
    columns: dict[str, Sequence[Any]], given: str | None, rows: Sequence[int], where: str
) -> tuple[list[str] | None, list[Problem]]:
    """Return train or val for each row if a split column holds nothing else, else None."""
    column = find_column(columns, "split", given, where)
    if column is None:
        return None, []
    words = [str(columns[column][row]).strip().lower() for row in rows]
    other = sorted(set(words) - set(SPLITS))
    if not other:
        return [SPLITS[word] for word in words], []
    message = f"Column {column!r} of '{where}' holds {other[0]!r}; expected train and val only"
    if given is not None:
        raise InputError(f"{message}. Leave the column out, or split the table.")
    return None, [Problem("split_ignored", column, f"{message}, so it is not used.")]


def _read_columns(path: Path, delimiter: str | None) -> dict[str, Sequence[Any]]:
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)
    separator = separator_of(path, delimiter)
    with read_text_table(path) as stream:
        header, *rows = [row for row in csv.reader(stream, delimiter=separator) if row] or [[]]
    if not rows:
        raise InputError(
            f"'{path}' has no rows: expected a header with domain, label and text or path columns."
        )
    ragged = next((i for i, row in enumerate(rows, 2) if len(row) != len(header)), None)
    if ragged:
        raise InputError(
            f"Row {ragged} of '{path}' has {len(rows[ragged - 2])} cells, but the header has {len(header)}. "
            "Quote cells that hold the separator."
        )
    return dict(zip(header, zip(*rows)))


@contextmanager
def read_text_table(path: Path) -> Iterator[TextIO]:
    """Open a text table for `csv`; whatever is wrong with its text is an `InputError`."""
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as stream:
            yield stream
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"Expected '{path}' to be a UTF-8 table, but {error}. Save it as UTF-8 CSV."
        ) from None


def separator_of(path: Path, delimiter: str | None) -> str:
    """Return the field separator of a text table; a tab may be given as \\t."""
    separator = (delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")).replace(r"\t", "\t")
    if len(separator) != 1 or separator in '\r\n"':
        raise InputError(f"Expected `delimiter` to be one character, but got {delimiter!r}.")
    return separator


def read_parquet(path: Path) -> dict[str, Sequence[Any]]:
    """Read the columns of a Parquet file."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError("Reading Parquet needs pyarrow: `pip install sourceward[data]`.") from None
    size = check_regular(path)
    try:
        with parquet.ParquetFile(path) as file:
            values = file.metadata.num_rows * max(len(file.schema_arrow.names), 1)
            check_expanded(path, size, max(VALUE * values, _uncompressed(file.metadata)))
            table = file.read()
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
    except InputError:
        raise
    except Exception as error:  # Arrow, Unicode, dates out of range, and whatever a damaged footer leads to
        reason = str(error).splitlines() or [type(error).__name__]
        raise InputError(f"'{path}' cannot be read as Parquet: {reason[0]}.") from None
    if not table.num_rows:
        raise InputError(f"'{path}' has no rows.")
    return columns


VALUE = 16
"""Least bytes of a value in memory. A column of one repeated value takes almost none in the file."""


def _uncompressed(metadata: Any) -> int:
    return sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
