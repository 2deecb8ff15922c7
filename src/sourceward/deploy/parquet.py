"""Parquet in and out: batches of columns as NumPy arrays, and predictions written whole."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.reading import check_expanded, check_regular
from sourceward._util.storage import atomic_file

KEY = b"sourceward"
"""Where the schema of an output says what it was made of."""

WRITE_ROWS, WRITE_BYTES = 65_536, 64 * 2**20
"""A row group is written when it reaches either."""


def pyarrow() -> Any:
    """Return the package, or an error that says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow: `pip install sourceward[data]`.") from None
    return pyarrow


def open_table(path: str) -> Any:
    """Open a Parquet file; what cannot be read is an `InputError`."""
    parquet = pyarrow().parquet
    check_regular(path, None)  # a row group is read at a time: see `row_group_sizes`
    try:
        return parquet.ParquetFile(path, pre_buffer=False)
    except Exception as error:  # Arrow, and whatever a damaged footer leads to
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(f"'{path}' cannot be read as Parquet: {reason}.")


def row_group_sizes(path: str) -> list[int]:
    """Return the number of rows of each row group, each of which has to fit into memory."""
    with open_table(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        size = os.path.getsize(path)
        for group in groups:
            check_expanded(path, size, group.total_byte_size)
        return [group.num_rows for group in groups]


def read_batches(path: str, columns: Sequence[str], row_groups: Sequence[int], size: int) -> Iterator[Any]:
    """Yield record batches of some columns, a row group in memory at a time."""
    with open_table(path) as file:
        groups = list(row_groups) or None
        batches = file.iter_batches(batch_size=size, columns=list(columns), row_groups=groups)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except Exception as error:  # damaged pages
                raise _unreadable(path, error) from None
            yield batch


def as_array(column: Any, where: str) -> np.ndarray:
    """Return an Arrow array as NumPy: a matrix where every row is a vector of one length, else objects.

    `where` is the file, for the error where values cannot be converted: dates out of range, invalid UTF-8.
    """
    try:
        return _as_array(column)
    except Exception as error:  # of whatever the conversion runs into
        raise _unreadable(where, error) from None


def _as_array(column: Any) -> np.ndarray:
    pa = pyarrow()
    kind = column.type
    if isinstance(column, pa.FixedShapeTensorArray):
        return column.to_numpy_ndarray()
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if lists and len(column) and not column.null_count:
        inner = column.flatten()
        number = pa.types.is_floating(inner.type) or pa.types.is_integer(inner.type)
        lengths = set(np.unique(column.value_lengths().to_numpy(zero_copy_only=False)).tolist())
        if number and len(lengths) == 1 and 0 not in lengths:
            return inner.to_numpy(zero_copy_only=False).reshape(len(column), lengths.pop())
    values = np.empty(len(column), dtype=object)
    values[:] = column.to_pylist()
    return values


def to_numpy(column: Any, where: str) -> np.ndarray:
    """Return an Arrow array as NumPy, as it is; `where` is the file, for the error."""
    try:
        return column.to_numpy(zero_copy_only=False)
    except Exception as error:  # of whatever the conversion runs into
        raise _unreadable(where, error) from None


def written_key(path: Path) -> dict[str, Any] | None:
    """Return what a complete output was made of, {} for a file of another origin; None without a file."""
    if not os.path.exists(path):
        return None
    with open_table(str(path)) as file:
        text = (file.schema_arrow.metadata or {}).get(KEY, b"{}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def write_table(path: Path, schema: Any, about: dict[str, Any]) -> Iterator[Any]:
    """Yield a function that takes record batches; the file appears under its name when it is complete."""
    pa = pyarrow()
    schema = schema.with_metadata({KEY: json.dumps(about, sort_keys=True)})
    waiting: list[Any] = []
    with atomic_file(path) as stream, pa.parquet.ParquetWriter(stream, schema, compression="zstd") as file:

        def flush() -> None:
            if waiting:
                file.write_table(pa.Table.from_batches(waiting, schema).combine_chunks())
                waiting.clear()

        def write(batch: Any) -> None:
            waiting.append(batch)
            full = sum(b.num_rows for b in waiting) >= WRITE_ROWS
            if full or sum(b.nbytes for b in waiting) >= WRITE_BYTES:
                flush()

        yield write
        flush()
