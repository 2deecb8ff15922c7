"""Decoded images on disk. Every image has a key, so that a part of what was cached is found again."""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
import torch

from sourceward.data.dataset import DomainDataset


def cache_folder() -> Path:
    """$SOURCEWARD_CACHE, else `sourceward` in $XDG_CACHE_HOME, else in ~/.cache."""
    given = os.environ.get("SOURCEWARD_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sourceward"


def image_keys(dataset: DomainDataset) -> np.ndarray:
    """A number for each image, uint64 (N,), from its id, signature and file time; labels play no part."""

    @cache
    def changed(path: str) -> int:
        return os.stat(path).st_mtime_ns if os.path.exists(path) else 0

    def key(name: str, item: object) -> bytes:
        time = changed(item.path) if hasattr(item, "path") else 0
        text = f"{name}\0{item.signature()}\0{time}"  # type: ignore[attr-defined]
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()

    return np.frombuffer(b"".join(map(key, dataset.ids, dataset.items)), dtype="<u8")


def find(folder: Path, keys: np.ndarray) -> torch.Tensor | None:
    """The images with these keys, if one file in `folder` holds them all. Writing to them changes no file."""
    for file in sorted(folder.glob("*.keys.npy")):
        stored = np.load(file)
        order = np.argsort(stored)
        places = np.searchsorted(stored, keys, sorter=order).clip(max=len(stored) - 1)
        rows = order[places]
        images = file.with_name(file.name.replace(".keys.npy", ".images.npy"))
        if np.array_equal(stored[rows], keys) and images.exists():
            pixels = np.load(images, mmap_mode="c")
            whole = len(keys) == len(stored) and np.array_equal(rows, np.arange(len(rows)))
            return torch.from_numpy(pixels if whole else pixels[rows])
    return None


def store(folder: Path, keys: np.ndarray, images: np.ndarray) -> None:
    """Write images, then keys, each whole or not at all. A cache that cannot be written is only a warning."""
    name = hashlib.blake2b(keys.tobytes(), digest_size=12).hexdigest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / f"{name}.images.npy", lambda stream: np.save(stream, images))
        _write(folder / f"{name}.keys.npy", lambda stream: np.save(stream, keys))
    except OSError as error:
        warnings.warn(
            f"Decoded images were not cached in '{folder}': {error.strerror}. They will be decoded again "
            "next time; set SOURCEWARD_CACHE to a folder with room.",
            stacklevel=4,
        )


def _write(file: Path, save: Callable[[IO[bytes]], None]) -> None:
    partial = None
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as stream:
            partial = Path(stream.name)
            save(stream)
        os.replace(partial, file)
    except OSError:
        if partial is not None:
            partial.unlink(missing_ok=True)
        raise
