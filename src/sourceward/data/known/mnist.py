"""MNIST and Fashion-MNIST from their idx files: rotated, one domain for each angle; and corrupted, the clean
images as the only source."""

import gzip
import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.reading import check_expanded, limit_of, read_regular, regular_size
from sourceward.data.corrupting import CLEAN, corrupted_domains
from sourceward.data.dataset import DomainDataset, build, zero_based
from sourceward.data.known.entry import known_dataset

# The three choices of sources of the paper (appendix; Piratla et al. 2020), targets 0 and 90 in each.
SETTINGS = {"15-75": (15, 30, 45, 60, 75), "30-60": (30, 45, 60), "30-45": (30, 45)}
TARGETS = (0, 90)
ROTATED_LAYOUT = (
    "<root>/.../train-images-idx3-ubyte and train-labels-idx1-ubyte, raw or .gz; t10k-* for part=test. "
    "Options: setting=15-75, 30-60 or 30-45, or angles and targets in degrees; per_domain; images."
)
ROTATED_ABOUT = "{} rotated by 0 to 90 degrees, {:,} images for each angle (Piratla et al. 2020)."
CORRUPTED_LAYOUT = (
    "<root>/.../train-images-idx3-ubyte, train-labels-idx1-ubyte and t10k-*, raw or .gz. Options: severity; "
    "corruptions, source_corruptions by name; clean and per_domain, numbers of images; size in pixels."
)
CORRUPTED_ABOUT = "Clean {} as the only source; its test images under 15 corruptions are the targets."
CLASSES = 10
SIDE = 32
"""Pixels: the smallest size for which every corruption is defined, and CIFAR's."""


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


def _register_rotated(name: str, idx: IdxDataset, default_count: int) -> None:
    @known_dataset(
        name, about=ROTATED_ABOUT.format(idx.title, default_count), where=idx.where, layout=ROTATED_LAYOUT
    )
    def read(
        path: str | Path,
        *,
        per_domain: int | None = default_count,
        setting: str = "15-75",
        angles: Sequence[float] | None = None,
        targets: Sequence[float] = TARGETS,
        images: Literal["same", "distinct"] = "same",
        part: Literal["train", "test"] = "train",
        seed: int = 0,
    ) -> DomainDataset:
        """Read source `angles` (or a named `setting`) and `targets`, `per_domain` images each (None: all).

        With images="same" every angle shows the same images, so the targets show training images at other
        angles; with "distinct" every domain has its own. One image in ten validates, at all its angles.
        """
        if setting not in SETTINGS:
            raise unknown_name("setting", setting, SETTINGS)
        degrees = sorted(set(SETTINGS[setting] if angles is None else angles) | set(targets))
        pixels, labels = read_idx_pair(Path(path), part)
        order = np.random.default_rng(seed).permutation(len(pixels))  # some copies are sorted by class
        rows = _rows_per_domain(order, len(degrees), per_domain, images)
        names = [f"{angle:g}" for angle in degrees]
        chosen, domains = np.concatenate(rows), np.repeat(names, [len(row) for row in rows])
        validates = np.zeros(len(pixels), dtype=bool)
        validates[order[::10]] = True
        data = build(
            "image",
            np.concatenate([rotate_arrays(pixels[row], angle) for row, angle in zip(rows, degrees)])[:, None],
            [idx.classes[code] for code in labels[chosen]],
            domains.tolist(),
            [f"{name}/{row:05d}" for name, row in zip(domains, chosen)],
            classes=idx.classes,
            domain_names=names,
            split=np.where(validates[chosen], "val", "train").tolist(),
            targets=[f"{angle:g}" for angle in targets],
            name=str(path),
        )
        return replace(data, split_by="one image in ten, at all its angles")


def _rows_per_domain(
    order: np.ndarray, num_domains: int, per_domain: int | None, images: str
) -> list[np.ndarray]:
    if images not in ("same", "distinct"):
        raise unknown_name("choice of images", images, ("same", "distinct"))
    available = len(order) if images == "same" else len(order) // num_domains
    wanted = available if per_domain is None else per_domain
    if not 0 < wanted <= available:
        raise InputError(
            f"Expected `per_domain` to be 1 to {available:,} for {num_domains} domains of {images} images, "
            f"but got {wanted:,}."
        )
    if images == "same":
        return [order[:wanted]] * num_domains
    return [order[start * wanted : (start + 1) * wanted] for start in range(num_domains)]


def rotate_arrays(images: np.ndarray, degrees: float, chunk: int = 4096) -> np.ndarray:
    """Rotate uint8 (N, H, W) images counter-clockwise about their centre, bilinear, black outside.

    >>> corner = np.zeros((1, 4, 4), dtype=np.uint8); corner[0, 0, 3] = 255
    >>> np.argwhere(rotate_arrays(corner, 90)[0]).tolist()
    [[0, 0]]
    """
    if degrees % 360 == 0:
        return images.copy()
    import torch  # listing the datasets needs no torch

    from sourceward.data.image_ops import rotate

    rotated = np.empty_like(images)
    for start in range(0, len(images), chunk):
        batch = torch.from_numpy(images[start : start + chunk]).float()[:, None]
        values = rotate(batch, torch.full((len(batch),), degrees, dtype=torch.float64), padding="zeros")
        rotated[start : start + chunk] = values[:, 0].round().clamp(0, 255).byte().numpy()
    return rotated


def _register_corrupted(name: str, idx: IdxDataset) -> None:
    @known_dataset(name, about=CORRUPTED_ABOUT.format(idx.title), where=idx.where, layout=CORRUPTED_LAYOUT)
    def read(
        path: str | Path,
        *,
        severity: int = 5,
        corruptions: Sequence[str] | None = None,
        source_corruptions: Sequence[str] = (),
        clean: int | None = 20_000,
        per_domain: int | None = 2_000,
        size: int = SIDE,
        seed: int = 0,
    ) -> DomainDataset:
        """Read `clean` training images (None: all) and the same `per_domain` test images per corruption."""
        train, test = (
            _part(Path(path), part, idx.classes, count, seed)
            for part, count in (("train", clean), ("test", per_domain))
        )
        return corrupted_domains(
            train,
            corruptions,
            severity,
            test=test,
            source_corruptions=source_corruptions,
            size=size,
            seed=seed,
        )


def _part(root: Path, part: str, classes: tuple[str, ...], count: int | None, seed: int) -> DomainDataset:
    pixels, labels = read_idx_pair(root, part)
    if count is not None and not 0 < count <= len(pixels):
        raise InputError(f"Expected 1 to {len(pixels):,} {part} images of '{root}', but got {count:,}.")
    rows = np.random.default_rng(seed).permutation(len(pixels))[:count]  # some copies are sorted by class
    names = [classes[code] for code in labels[rows]]
    ids = [f"{part}/{row:05d}" for row in rows]
    data = build(
        "image", pixels[rows][:, None], names, [CLEAN] * len(ids), ids, classes=classes, domain_names=[CLEAN]
    )
    return replace(data, problems=(), name=str(root))


def read_idx_pair(root: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the images uint8 (N, H, W) and labels (N,) of "train" or "test" from anywhere below `root`."""
    prefix = {"train": "train", "test": "t10k"}.get(part)
    if prefix is None:
        raise unknown_name("part", part, ("train", "test"))
    images, labels = (_read_idx(_find(root, f"{prefix}-{kind}")) for kind in ("images", "labels"))
    if images.ndim != 3 or labels.shape != images.shape[:1] or not images.size:
        raise InputError(
            f"Expected images (N, height, width) and N labels under '{root}', but got shapes {images.shape} "
            f"and {labels.shape}. Download the four files again."
        )
    return images, zero_based(labels, CLASSES, str(root))[0]


def _find(root: Path, stem: str) -> Path:
    found = sorted(
        p for p in root.rglob(f"{stem}*ubyte*") if regular_size(p) is not None and not p.name.startswith(".")
    )
    if not found:
        raise InputError(f"'{root}' holds no {stem}-idx*-ubyte[.gz]. Expected the four idx files of MNIST.")
    return found[0]


def _read_idx(path: Path) -> np.ndarray:
    data = read_regular(path)
    try:
        data = _decompressed(data, path) if data[:2] == b"\x1f\x8b" else data
        zeros, kind, rank = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{rank}I", data, 4)
        if (zeros, kind) != (0, 8):
            raise ValueError("its header is not that of unsigned bytes in idx format")
        return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)
    except InputError:
        raise
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise InputError(f"'{path}' is not a complete idx file: {error}. Download it again.") from None


def _decompressed(data: bytes, path: Path) -> bytes:
    """Return the content of a .gz, and stop where it becomes too large."""
    most = len(data) + limit_of("expanded_bytes")
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        found = stream.read(most + 1)
    check_expanded(path, len(data), len(found))
    return found


_register_rotated("rotated_mnist", MNIST, 2_000)
_register_rotated("rotated_fashion_mnist", FASHION_MNIST, 10_000)
_register_corrupted("corrupted_mnist", MNIST)
_register_corrupted("corrupted_fashion_mnist", FASHION_MNIST)
