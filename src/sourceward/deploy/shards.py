"""The shards of a large prediction: parts of the input, each of which becomes one Parquet file.

Shards are found as they are needed, in an order that depends on names alone: every machine that runs the same
command finds the same shards, and the input never has to fit into memory.
"""

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError
from sourceward.data.tree import is_image

ROWS = {"image": 10_000, "text": 100_000, "features": 1_000_000}
"""Rows of a shard, at most: a kill loses the work on one."""


@dataclass(frozen=True)
class Shard:
    """Some rows of the input, and the file of their predictions."""

    out: str
    """Name of the output below the output folder."""
    table: str = ""
    """A Parquet file."""
    row_groups: tuple[int, ...] = ()
    """Of the table; all when empty."""
    images: tuple[str, ...] = ()
    """Paths, where the shard is of image files."""

    def key(self) -> str:
        """A hash of the input: names of images, or name, size and row groups of the table."""
        size = os.path.getsize(self.table) if self.table else 0
        parts = (os.path.basename(self.table), size, self.row_groups, self.images)
        return hashlib.blake2b(repr(parts).encode(errors="surrogateescape"), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Unreadable:
    """A Parquet file of the input that cannot be read, and why."""

    table: str
    reason: str


def find_shards(inputs: Sequence[str | Path], rows: int) -> Iterator[Shard | Unreadable]:
    """Yield the shards of Parquet files and folders of images, in order; folders and globs are sorted.

    Outputs mirror the Parquet files below their common folder. A file of more than `rows` rows is split
    between its row groups, and images are taken `rows` at a time.
    """
    if rows < 1:
        raise InputError(f"Expected `--rows` to be 1 or more, but got {rows}.")
    expanded = [path for given in map(str, inputs) for path in _expand(given)]
    common = _common_folder(expanded)
    images: list[str] = []
    number = 0
    for path in _files(expanded):
        if path.lower().endswith(".parquet"):
            yield from _table_shards(path, os.path.relpath(path, common), rows)
        else:
            images.append(path)
        if len(images) == rows:
            yield Shard(f"images-{number:06d}.parquet", images=tuple(images))
            images, number = [], number + 1
    if images:
        yield Shard(f"images-{number:06d}.parquet", images=tuple(images))


def parse_part(text: str) -> tuple[int, int]:
    """Return number and count of `--shard`.

    >>> parse_part("2/8")
    (2, 8)
    """
    first, _, second = text.partition("/")
    if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
        raise InputError(f"Expected `--shard` as i/n with i from 1 to n, such as 2/8, but got {text!r}.")
    return int(first), int(second)


def part_of(shards: Iterable[Any], number: int, count: int) -> Iterator[Any]:
    """Yield the shards of machine `number` of `count`: every `count`-th, from `number` on."""
    return (shard for place, shard in enumerate(shards) if place % count == number - 1)


def _expand(given: str) -> list[str]:
    """Return the path itself, or the sorted matches of a glob."""
    if os.path.exists(given):
        return [given]
    found = sorted(glob.glob(given, recursive=True))
    if not found:
        raise InputError(f"No such file: '{given}'. Expected Parquet files, folders or globs.")
    return found


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all inputs lie in: a given folder itself, the parent of a file."""
    return os.path.commonpath([os.path.abspath(p if os.path.isdir(p) else os.path.dirname(p)) for p in paths])


def _files(paths: Sequence[str]) -> Iterator[str]:
    """Yield Parquet files and images, those below folders included."""
    for path in paths:
        if os.path.isdir(path):
            yield from _walk(path, set())
        elif path.lower().endswith(".parquet") or is_image(path):
            yield path
        else:
            raise InputError(
                f"Expected Parquet files, images or folders of them, but got '{path}'. Other inputs can be "
                "predicted to one file: --out predictions.csv."
            )


def _walk(folder: str, seen: set[str]) -> Iterator[str]:
    """Yield the files below a folder in the order of names. The names of one folder are in memory at a time,
    and of those above it; links are followed, each folder once."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    with os.scandir(folder) as entries:
        names = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    for name, is_folder in names:
        path = os.path.join(folder, name)
        if is_folder:
            yield from _walk(path, seen)
        elif name.lower().endswith(".parquet") or is_image(name):
            yield path


def _table_shards(path: str, name: str, rows: int) -> Iterator[Shard | Unreadable]:
    """Yield the shards of one Parquet file."""
    from sourceward.deploy.parquet import row_group_sizes

    try:
        sizes = row_group_sizes(path)
    except InputError as error:
        yield Unreadable(path, str(error))
        return
    if sum(sizes) <= rows or len(sizes) < 2:
        yield Shard(name, path)
        return
    groups = [*_groups(sizes, rows)]
    stem = name[: -len(".parquet")]
    for number, group in enumerate(groups):
        yield Shard(f"{stem}-{number:05d}-of-{len(groups):05d}.parquet", path, group)


def _groups(sizes: Sequence[int], rows: int) -> Iterator[tuple[int, ...]]:
    """Yield consecutive numbers whose sizes add up to at most `rows`, one number at least.

    >>> list(_groups([4, 4, 4, 9, 1], 8))
    [(0, 1), (2,), (3,), (4,)]
    """
    group: list[int] = []
    for number, size in enumerate(sizes):
        if group and sum(sizes[i] for i in group) + size > rows:
            yield tuple(group)
            group = []
        group.append(number)
    yield tuple(group)
