"""A cache of decoded images on disk. Every image has its own key, so subsets are found again."""

import hashlib
import math
import os
import re
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.reading import check_regular
from sourceward._util.storage import atomic_file
from sourceward.data.dataset import DomainDataset

OWN_FILES = re.compile(r"images/(.*/)?[0-9a-f]{24}\.(images|keys)\.npy|features/[0-9a-f]{32}\.safetensors")
"""Files that the cache writes; nothing else in its folder is ever deleted."""


def cache_folder() -> Path:
    """Return $SOURCEWARD_CACHE, else `sourceward` in $XDG_CACHE_HOME, else in ~/.cache."""
    given = os.environ.get("SOURCEWARD_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sourceward"


def cache_limit() -> float:
    """Return the most bytes that the cache keeps: $SOURCEWARD_CACHE_GB, else 20 GB."""
    given = os.environ.get("SOURCEWARD_CACHE_GB") or "20"
    try:
        limit = float(given) * 1e9
    except ValueError:
        limit = math.nan
    if not limit >= 0:
        raise InputError(f"Expected SOURCEWARD_CACHE_GB to be a number from 0 on, but got {given!r}.")
    return limit


def cached_files() -> list[tuple[Path, os.stat_result]]:
    """Return what the cache holds, the oldest first."""
    found, folder = [], cache_folder()
    for path in (*folder.glob("images/**/*.npy"), *folder.glob("features/*.safetensors")):
        if OWN_FILES.fullmatch(path.relative_to(folder).as_posix()):
            with suppress(OSError):  # another process may delete it meanwhile
                found.append((path, path.stat()))
    return sorted(found, key=lambda each: each[1].st_mtime_ns)


def trim_cache(limit: float) -> int:
    """Delete the oldest files until at most `limit` bytes are left; return how many bytes were deleted."""
    files = cached_files()
    excess, deleted = sum(stat.st_size for _, stat in files) - limit, 0
    for path, stat in files:
        if deleted >= excess:
            break
        with suppress(OSError):
            path.unlink()
            deleted += stat.st_size
    return deleted


def image_keys(dataset: DomainDataset) -> np.ndarray:
    """Return a key for each image, uint64 (N,), from its id, signature and file time, not its label."""

    @cache
    def changed(path: str) -> int:
        return os.stat(path).st_mtime_ns if os.path.exists(path) else 0

    def key(name: str, item: object) -> bytes:
        time = changed(item.path) if hasattr(item, "path") else 0
        text = f"{name}\0{item.signature()}\0{time}"  # type: ignore[attr-defined]
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()

    return np.frombuffer(b"".join(map(key, dataset.ids, dataset.items)), dtype="<u8")


def find(folder: Path, keys: np.ndarray) -> np.ndarray | None:
    """Return the images with these keys if one file in `folder` holds all; writing to them is safe."""
    for file in sorted(folder.glob("*.keys.npy")):
        stored, pixels = _stored(file, "c")
        if not len(stored):
            continue
        order = np.argsort(stored)
        places = np.searchsorted(stored, keys, sorter=order).clip(max=len(stored) - 1)
        rows = order[places]
        if np.array_equal(stored[rows], keys):
            whole = len(keys) == len(stored) and np.array_equal(rows, np.arange(len(rows)))
            return pixels if whole else pixels[rows]
    return None


def gather(folder: Path, keys: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the images with these keys, from as many files as it takes, and the rows that no file holds.

    The array has a row for every key; None where no file holds any.
    """
    images, missing = None, np.arange(len(keys))
    for file in sorted(folder.glob("*.keys.npy")):
        stored, pixels = _stored(file, "r")
        _, rows, places = np.intersect1d(keys[missing], stored, return_indices=True)
        if len(rows):
            images = np.empty((len(keys), *pixels.shape[1:]), pixels.dtype) if images is None else images
            images[missing[rows]] = pixels[places]
            missing = np.delete(missing, rows)
    return images, missing


def _stored(file: Path, mode: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and images of one file; none where it is damaged or being deleted: decoded again."""
    images = file.with_name(file.name.replace(".keys.npy", ".images.npy"))
    try:
        check_regular(file), check_regular(images, None)
        keys, pixels = np.load(file, allow_pickle=False), np.load(images, mmap_mode=mode, allow_pickle=False)
    except Exception:  # NumPy parses a header as Python, and raises what its parser does
        keys = pixels = np.zeros(0)
    side = re.match(r"v\d+-(\d+)x(\d+)-", file.parent.name)
    size = tuple(map(int, side.groups())) if side else pixels.shape[2:]
    right = keys.dtype == np.dtype("<u8") and keys.ndim == 1 and pixels.dtype == np.uint8
    if right and pixels.shape == (len(keys), 3, *size):
        return keys, pixels
    return np.zeros(0, "<u8"), np.zeros((0, 3, *size), np.uint8)


def store(folder: Path, keys: np.ndarray, images: np.ndarray) -> None:
    """Write images, then keys, each atomically. Warn if the cache cannot be written."""
    name = hashlib.blake2b(keys.tobytes(), digest_size=12).hexdigest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, array in (("images", images), ("keys", keys)):
            with atomic_file(folder / f"{name}.{kind}.npy") as stream:
                np.save(stream, array)
        trim_cache(max(cache_limit(), images.nbytes + keys.nbytes + 1e6))  # never what was just written
    except (OSError, InputError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        warnings.warn(
            f"Decoded images were not cached in '{folder}': {reason}. They will be decoded again "
            "next time; set SOURCEWARD_CACHE to a folder with room.",
            stacklevel=4,
        )
