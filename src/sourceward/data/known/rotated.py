"""Rotated MNIST and Rotated Fashion-MNIST: one domain for each angle, made from the idx files."""

import gzip
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.nn.functional import affine_grid, grid_sample

from sourceward._util.errors import InputError, unknown_name
from sourceward.data.dataset import DomainDataset, build
from sourceward.data.known.entry import known_dataset

# The three source settings of the paper (appendix; Piratla et al. 2020), targets 0 and 90 in each.
SETTINGS = {"15-75": (15, 30, 45, 60, 75), "30-60": (30, 45, 60), "30-45": (30, 45)}
TARGETS = (0, 90)
DIGITS = tuple("0123456789")
FASHION = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
LAYOUT = (
    "<root>/.../train-images-idx3-ubyte and train-labels-idx1-ubyte, raw or .gz; t10k-* for part=test. "
    "Options: setting=15-75, 30-60 or 30-45, or angles and targets in degrees; per_domain; images."
)


@known_dataset(
    "rotated_mnist",
    about="MNIST digits turned by 0 to 90 degrees, 2,000 images for each angle (Piratla et al. 2020).",
    where="Yann LeCun's MNIST page, http://yann.lecun.com/exdb/mnist/ , or torchvision's MNIST/raw folder.",
    layout=LAYOUT,
)
def read_rotated_mnist(
    path: str | Path, *, per_domain: int | None = 2_000, **options: object
) -> DomainDataset:
    return read_rotated(path, DIGITS, per_domain=per_domain, **options)  # type: ignore[arg-type]


@known_dataset(
    "rotated_fashion_mnist",
    about="Fashion-MNIST turned by 0 to 90 degrees, 10,000 images for each angle (Piratla et al. 2020).",
    where="https://github.com/zalandoresearch/fashion-mnist , or the Debian package dataset-fashion-mnist.",
    layout=LAYOUT,
)
def read_rotated_fashion(
    path: str | Path, *, per_domain: int | None = 10_000, **options: object
) -> DomainDataset:
    return read_rotated(path, FASHION, per_domain=per_domain, **options)  # type: ignore[arg-type]


def read_rotated(
    path: str | Path,
    classes: tuple[str, ...],
    *,
    per_domain: int | None,
    setting: str = "15-75",
    angles: Sequence[float] | None = None,
    targets: Sequence[float] = TARGETS,
    images: Literal["same", "distinct"] = "same",
    part: Literal["train", "test"] = "train",
    seed: int = 0,
) -> DomainDataset:
    """Source `angles` (or a named `setting`) and `targets`, `per_domain` images each (None: all there are).

    images="same" turns the same images by every angle: a target then shows images that were
    trained on, at another angle. "distinct" gives every domain its own. One image in ten
    validates, in all its domains.
    """
    if setting not in SETTINGS:
        raise unknown_name("setting", setting, SETTINGS)
    degrees = sorted(set(SETTINGS[setting] if angles is None else angles) | set(targets))
    pixels, labels = read_idx_pair(Path(path), part)
    order = np.random.default_rng(seed).permutation(len(pixels))  # some copies are sorted by class
    rows = _share(order, len(degrees), per_domain, images)
    names = [f"{angle:g}" for angle in degrees]
    turned = np.concatenate([rotate(pixels[row], angle) for row, angle in zip(rows, degrees)])
    picked = np.concatenate(rows)
    domains = np.repeat(names, [len(row) for row in rows])
    validates = np.zeros(len(pixels), dtype=bool)
    validates[order[::10]] = True
    data = build(
        "image",
        turned[:, None],
        [classes[code] for code in labels[picked]],
        domains.tolist(),
        [f"{name}/{row:05d}" for name, row in zip(domains, picked)],
        classes=classes,
        domain_names=names,
        split=np.where(validates[picked], "val", "train").tolist(),
        targets=[f"{angle:g}" for angle in targets],
        name=str(path),
    )
    return replace(data, split_by="one image in ten, at all its angles")


def _share(order: np.ndarray, num_domains: int, per_domain: int | None, images: str) -> list[np.ndarray]:
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


def rotate(images: np.ndarray, degrees: float, chunk: int = 4096) -> np.ndarray:
    """Turn uint8 (N, H, W) images counter-clockwise about their centre, bilinear, black outside.

    >>> corner = np.zeros((1, 4, 4), dtype=np.uint8); corner[0, 0, 3] = 255
    >>> np.argwhere(rotate(corner, 90)[0]).tolist()
    [[0, 0]]
    """
    if degrees % 360 == 0:
        return images.copy()
    angle = torch.deg2rad(torch.tensor(float(degrees), dtype=torch.float64))
    cos, sin, zero = torch.cos(angle), torch.sin(angle), torch.zeros((), dtype=torch.float64)
    turn = torch.stack((cos, -sin, zero, sin, cos, zero)).view(1, 2, 3).float()
    turned = np.empty_like(images)
    for start in range(0, len(images), chunk):
        batch = torch.from_numpy(images[start : start + chunk]).float()[:, None]
        grid = affine_grid(turn.expand(len(batch), 2, 3), list(batch.shape), align_corners=False)
        values = grid_sample(batch, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        turned[start : start + chunk] = values[:, 0].round().clamp(0, 255).byte().numpy()
    return turned


def read_idx_pair(root: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (N, H, W) and labels (N,) of one part, wherever below `root` they lie."""
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
            raise ValueError("its first bytes are not those of unsigned bytes in idx format")
        return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise InputError(f"'{path}' is not a whole idx file: {error}. Download it again.") from None
