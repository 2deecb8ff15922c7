"""MNIST and Fashion-MNIST in their idx files, from which the rotated and corrupted variants are made."""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sourceward._util.errors import InputError, unknown_name


@dataclass(frozen=True)
class IdxDataset:
    """One dataset of 28 x 28 gray images in idx files."""

    title: str
    classes: tuple[str, ...]
    where: str


MNIST = IdxDataset(
    "MNIST",
    tuple("0123456789"),
    "Yann LeCun's MNIST page, http://yann.lecun.com/exdb/mnist/ , or torchvision's MNIST/raw folder.",
)
FASHION_MNIST = IdxDataset(
    "Fashion-MNIST",
    ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    "https://github.com/zalandoresearch/fashion-mnist , or the Debian package dataset-fashion-mnist.",
)


def read_idx_pair(root: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the images uint8 (N, H, W) and labels (N,) of "train" or "test" from anywhere below `root`."""
    prefix = {"train": "train", "test": "t10k"}.get(part)
    if prefix is None:
        raise unknown_name("part", part, ("train", "test"))
    images, labels = (_read_idx(_find(root, f"{prefix}-{kind}")) for kind in ("images", "labels"))
    if images.ndim != 3 or len(images) != len(labels):
        raise InputError(
            f"Expected as many labels as images under '{root}', but got {len(labels):,} and {len(images):,}. "
            "Download the four files again."
        )
    return images, labels


def _find(root: Path, stem: str) -> Path:
    found = sorted(p for p in root.rglob(f"{stem}*ubyte*") if p.is_file() and not p.name.startswith("."))
    if not found:
        raise InputError(f"'{root}' holds no {stem}-idx*-ubyte[.gz]. Expected the four idx files of MNIST.")
    return found[0]


def _read_idx(path: Path) -> np.ndarray:
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        zeros, kind, rank = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{rank}I", data, 4)
        if (zeros, kind) != (0, 8):
            raise ValueError("its header is not that of unsigned bytes in idx format")
        return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise InputError(f"'{path}' is not a complete idx file: {error}. Download it again.") from None
