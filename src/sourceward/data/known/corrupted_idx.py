"""MNIST and Fashion-MNIST as a single clean source and its corruptions, made from the idx files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sourceward._util.errors import InputError
from sourceward.data.corrupting import CLEAN, corrupted_domains
from sourceward.data.dataset import DomainDataset, build
from sourceward.data.known.entry import known_dataset
from sourceward.data.known.rotated import DIGITS, FASHION, read_idx_pair

LAYOUT = (
    "<root>/.../train-images-idx3-ubyte, train-labels-idx1-ubyte and t10k-*, raw or .gz. Options: severity; "
    "corruptions, practice by name; clean and per_domain, numbers of images; size in pixels."
)
SIDE = 32
"""Pixels: the least that every corruption is defined for, and CIFAR's."""


ABOUT = "Clean {name} as the only source; its test images under 15 corruptions are the targets."


def _register(name: str, title: str, classes: tuple[str, ...], where: str) -> None:
    @known_dataset(name, about=ABOUT.format(name=title), where=where, layout=LAYOUT)
    def read(
        path: str | Path,
        *,
        severity: int = 5,
        corruptions: Sequence[str] | None = None,
        practice: Sequence[str] = (),
        clean: int | None = 20_000,
        per_domain: int | None = 2_000,
        size: int = SIDE,
        seed: int = 0,
    ) -> DomainDataset:
        """`clean` training images (None: all) and, for each corruption, the same `per_domain` test images."""
        train = _part(Path(path), "train", classes, clean, seed)
        test = _part(Path(path), "test", classes, per_domain, seed)
        return corrupted_domains(
            train, corruptions, severity, test=test, practice=practice, size=size, seed=seed
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


_register(
    "corrupted_mnist",
    "MNIST",
    DIGITS,
    "Yann LeCun's MNIST page, http://yann.lecun.com/exdb/mnist/ , or torchvision's MNIST/raw folder.",
)
_register(
    "corrupted_fashion_mnist",
    "Fashion-MNIST",
    FASHION,
    "https://github.com/zalandoresearch/fashion-mnist , or the Debian package dataset-fashion-mnist.",
)
