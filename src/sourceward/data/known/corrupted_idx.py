"""MNIST and Fashion-MNIST as a single clean source and its corruptions, made from the idx files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sourceward._util.errors import InputError
from sourceward.data.corrupting import CLEAN, corrupted_domains
from sourceward.data.dataset import DomainDataset, build
from sourceward.data.known.entry import known_dataset
from sourceward.data.known.idx import FASHION_MNIST, MNIST, IdxDataset, read_idx_pair

LAYOUT = (
    "<root>/.../train-images-idx3-ubyte, train-labels-idx1-ubyte and t10k-*, raw or .gz. Options: severity; "
    "corruptions, source_corruptions by name; clean and per_domain, numbers of images; size in pixels."
)
ABOUT = "Clean {} as the only source; its test images under 15 corruptions are the targets."
SIDE = 32
"""Pixels: the smallest size for which every corruption is defined, and CIFAR's."""


def _register(name: str, idx: IdxDataset) -> None:
    @known_dataset(name, about=ABOUT.format(idx.title), where=idx.where, layout=LAYOUT)
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


_register("corrupted_mnist", MNIST)
_register("corrupted_fashion_mnist", FASHION_MNIST)
