"""Rotated MNIST and Rotated Fashion-MNIST: one domain for each angle, made from the idx files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from sourceward._util.errors import InputError, unknown_name
from sourceward.data.dataset import DomainDataset, build
from sourceward.data.known.entry import known_dataset
from sourceward.data.known.idx import FASHION_MNIST, MNIST, IdxDataset, read_idx_pair

# The three choices of sources of the paper (appendix; Piratla et al. 2020), targets 0 and 90 in each.
SETTINGS = {"15-75": (15, 30, 45, 60, 75), "30-60": (30, 45, 60), "30-45": (30, 45)}
TARGETS = (0, 90)
LAYOUT = (
    "<root>/.../train-images-idx3-ubyte and train-labels-idx1-ubyte, raw or .gz; t10k-* for part=test. "
    "Options: setting=15-75, 30-60 or 30-45, or angles and targets in degrees; per_domain; images."
)
ABOUT = "{} rotated by 0 to 90 degrees, {:,} images for each angle (Piratla et al. 2020)."


def _register(name: str, idx: IdxDataset, default_count: int) -> None:
    @known_dataset(name, about=ABOUT.format(idx.title, default_count), where=idx.where, layout=LAYOUT)
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


_register("rotated_mnist", MNIST, 2_000)
_register("rotated_fashion_mnist", FASHION_MNIST, 10_000)
