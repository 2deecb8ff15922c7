"""The rows of an input column: as a model takes them, or the reason why a row cannot be predicted."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sourceward._util.errors import InputError
from sourceward._util.reading import inside, read_regular
from sourceward.data.arrays import find_array
from sourceward.data.decode import Geometry, decode_image, map_threads, reason_of
from sourceward.data.loading import image_geometry
from sourceward.data.table import find_column
from sourceward.model import Model
from sourceward.model.items import prefetch, send

CHUNK = {"image": 256, "text": 256, "features": 4096}
"""Rows that are read and predicted at a time: bounds memory, whatever the size of a batch."""

MISSING = "missing value"

Locate = Callable[[str | Path], Path]
"""From an image path to its file."""

Rows = tuple[Any, list[str]]
"""The readable rows of a chunk, as the model takes them, and the reason of every row, "" if readable."""


def find_rows(columns: Mapping[str, Any], kind: str, name: str | None) -> Any:
    """Return the column that a model of this kind reads: the given one, or one with a usual name."""
    return columns[column_name(list(columns), kind, name)]


def column_name(names: list[str], kind: str, given: str | None, where: str = "the batch") -> str:
    """Return the name of the column that a model of this kind reads."""
    if kind == "image" and given is None and "image" in names:
        return "image"  # of its usual names, before `path`
    if kind == "features" and given is None:
        found = find_array(dict.fromkeys(names), "features", where)
    else:
        found = find_column(names, "text" if kind == "text" else "path", given, where)
    if found is None:
        raise InputError(
            f"Expected a column {kind!r} in {where}, but found {', '.join(names) or 'none'}. Name it: "
            "`column=` in Python, --column on the command line."
        )
    return found


def locate(path: str | Path, base: str = "", root: str | None = None) -> Path:
    """Return the file of an image path: below `base`, and not outside of `root` where it is given."""
    file = Path(base) / path
    if root is not None and not inside(root, file):
        raise InputError(f"'{path}' is outside of the root '{root}'")
    return file


def read_rows(model: Model, column: Any, find: Locate = locate) -> Iterator[Rows]:
    """Yield chunks of a column, the next one read while this one is predicted; one at least.

    Args:
        model: decides what a row is.
        column: anything with a length and slices.
        find: from an image path to its file.
    """
    read = {"image": _images, "text": _texts, "features": _features}[model.kind]
    size, count = CHUNK[model.kind], len(column)
    chunks = (column[start : start + size] for start in range(0, max(count, 1), size))
    return prefetch(lambda chunk: read(model, chunk, find), chunks)


def _features(model: Model, rows: Any, find: Locate) -> Rows:
    width = model.adapter.n_features_in_
    matrix = _matrix(rows)
    if matrix is not None and matrix.shape[1] == width:
        finite = np.isfinite(matrix).all(1)
        return matrix[finite], ["" if fine else "NaN or infinity" for fine in finite]
    found: list[np.ndarray] = []
    reasons = []
    for row in rows:
        value = _vector(row, width)
        reasons.append(value if isinstance(value, str) else "")
        if not isinstance(value, str):
            found.append(value)
    return np.stack(found) if found else np.zeros((0, width), np.float32), reasons


def _matrix(rows: Any) -> np.ndarray | None:
    """A float32 copy of rows of one length; None for anything else."""
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinity
            stacked = rows if isinstance(rows, np.ndarray) and rows.dtype != object else np.stack([*rows])
            matrix = np.array(stacked, dtype=np.float32)
    except (ValueError, TypeError):
        return None
    return matrix if matrix.ndim == 2 else None


def _vector(row: Any, width: int) -> np.ndarray | str:
    """One feature vector, or why it is none."""
    if row is None or (isinstance(row, float) and np.isnan(row)):
        return MISSING
    try:
        with np.errstate(over="ignore"):
            vector = np.asarray(row, dtype=np.float32)
    except (ValueError, TypeError):
        return "not a vector of numbers"
    if vector.ndim != 1 or len(vector) != width:
        return f"expected {width} values, found {vector.size if vector.ndim == 1 else vector.shape}"
    return vector if np.isfinite(vector).all() else "NaN or infinity"


def _texts(model: Model, rows: Any, find: Locate) -> Rows:
    reasons = [_text_problem(row) for row in rows]
    return [str(row) for row, reason in zip(rows, reasons) if not reason], reasons


def _text_problem(row: Any) -> str:
    if row is None or (isinstance(row, float) and np.isnan(row)):
        return MISSING
    if not isinstance(row, str):
        return f"expected a text, found {type(row).__name__}"
    try:
        row.encode()
    except UnicodeEncodeError:
        return "not valid Unicode"
    return "" if row.strip() else "the text is empty"


def _images(model: Model, rows: Any, find: Locate) -> Rows:
    shape = image_geometry(model.preprocessing)
    values = list(map_threads(lambda row: _pixels(rows[row], shape, find), range(len(rows)), None))
    pixels = [value for value in values if not isinstance(value, str)]
    reasons = [value if isinstance(value, str) else "" for value in values]
    if not pixels:
        return None, reasons
    return send(torch.from_numpy(np.stack(pixels)), model.device), reasons


def _pixels(item: Any, shape: Geometry, find: Locate) -> np.ndarray | str:
    """One decoded image, uint8 (3, height, width), or why it cannot be decoded."""
    if isinstance(item, Mapping):  # as `datasets` stores images in Parquet
        item = item.get("bytes") if item.get("bytes") is not None else item.get("path")
    if item is None or (isinstance(item, float) and np.isnan(item)):
        return MISSING
    if isinstance(item, bytearray | memoryview):
        item = bytes(item)
    try:
        if isinstance(item, str | Path):
            if not str(item).strip():
                return "its path is empty"
            item = read_regular(find(item), "image_bytes")
        elif isinstance(item, np.ndarray):
            from PIL import Image

            item = Image.fromarray(item)
        return "the file is empty" if item == b"" else decode_image(item, shape)
    except Exception as error:  # PIL and NumPy raise different exceptions for what is no image
        return reason_of(error)
