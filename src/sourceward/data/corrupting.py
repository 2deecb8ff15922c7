"""Domains made from a clean one by synthetic corruptions: further sources, and targets."""

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from sourceward._util.errors import InputError
from sourceward.data.dataset import DomainDataset, ImageItem, build
from sourceward.data.decode import Geometry, decode_image, geometry, resize_arrays

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CLEAN = "clean"
SPLIT_BY = "a tenth of each class of the clean images, with all their copies"


def corrupted_domains(
    clean: DomainDataset,
    corruptions: Sequence[str] | None = None,
    severity: int = 5,
    *,
    test: DomainDataset | None = None,
    source_corruptions: Sequence[str] = (),
    size: int | None = None,
    seed: int = 0,
) -> DomainDataset:
    """Return the domain "clean", sources for `source_corruptions` and targets for `corruptions`.

    Targets are made from `test`, or else from the validation images of `clean`; an image and its corrupted
    copies are on the same side of the split. `corruptions` defaults to the 15 test corruptions. Arrays are
    resized to `size` and corrupted now, image files when they are read.
    """
    targets = choose_corruptions(corruptions, severity)
    sources = choose_corruptions(source_corruptions, severity)
    if set(targets) & set(sources):
        both = ", ".join(sorted(set(targets) & set(sources)))
        raise InputError(
            f"Expected `source_corruptions` and `corruptions` to be disjoint, but both hold {both}."
        )
    _, val = clean.train_val_indices(seed=seed)
    test = clean.select(val) if test is None else test
    shape = geometry(size or (clean.items.shape[-2:] if isinstance(clean.items, np.ndarray) else 224))
    parts = [(name, clean) for name in (CLEAN, *sources)] + [(name, test) for name in targets]
    items = [_corrupt(data, name, severity, shape, seed) for name, data in parts]
    split = np.full(len(clean), "train", dtype="<U5")
    split[val] = "val"
    data = build(
        "image",
        np.concatenate(items) if isinstance(items[0], np.ndarray) else sum(items, ()),
        [data.classes[code] for _, data in parts for code in data.labels],
        [name for name, data in parts for _ in range(len(data))],
        [f"{name}/{sample}" for name, data in parts for sample in data.ids],
        classes=clean.classes,
        domain_names=(CLEAN, *sources, *targets),
        split=[*split.tolist() * (1 + len(sources)), *["val"] * len(test) * len(targets)],
        problems=[replace(problem, domain=None) for problem in clean.problems],
        targets=targets,
        name=clean.name,
    )
    return replace(data, split_by=SPLIT_BY)


def choose_corruptions(corruptions: Sequence[str] | None, severity: int) -> tuple[str, ...]:
    """Check names and severity; None stands for the 15 test corruptions."""
    from sourceward.data.corruptions import CORRUPTIONS, TEST_CORRUPTIONS

    if severity not in range(1, 6):
        raise InputError(f"Expected `severity` to be 1 (mild) to 5 (severe), but got {severity}.")
    names = TEST_CORRUPTIONS if corruptions is None else tuple(corruptions)
    for name in names:
        CORRUPTIONS[name]  # raises an error for an unknown name
    return names


def _corrupt(data: DomainDataset, name: str, severity: int, shape: Geometry, seed: int) -> Any:
    """Return the items of `data` under one corruption."""
    if isinstance(data.items, np.ndarray):
        pixels = resize_arrays(data.items, shape).numpy()
        return pixels if name == CLEAN else _corrupt_arrays(pixels, name, severity, seed)
    if name == CLEAN:
        return tuple(data.items)
    keys = [zlib.crc32(f"{seed}{sample}".encode(errors="surrogatepass")) for sample in data.ids]
    return tuple(CorruptedImage(item, name, severity, shape, key) for item, key in zip(data.items, keys))


def _corrupt_arrays(pixels: np.ndarray, name: str, severity: int, seed: int, chunk: int = 1000) -> np.ndarray:
    """Corrupt uint8 (N, 3, H, W); the noise depends on seed, name and severity."""
    import torch

    from sourceward.data.corruptions import corrupt

    generator = corruption_generator("cpu", f"{name}{severity}", seed)
    parts = torch.from_numpy(np.ascontiguousarray(pixels)).split(chunk)
    return torch.cat([corrupt(part, name, severity, generator=generator) for part in parts]).numpy()


def corruption_generator(device: "torch.device | str", name: str, seed: int) -> "torch.Generator":
    """Return the random generator of one corruption."""
    import torch

    return torch.Generator(device).manual_seed(zlib.crc32(f"{seed}{name}".encode()))


def corrupt_cycling(images: "Tensor", name: str, first: int, generator: "torch.Generator") -> "Tensor":
    """Corrupt uint8 (N, 3, H, W), image i at severity (first + i) mod 5 + 1."""
    import torch

    from sourceward.data.corruptions import corrupt

    copies = torch.empty_like(images)
    for severity in range(1, 6):
        rows = slice((severity - 1 - first) % 5, None, 5)
        if len(images[rows]):
            copies[rows] = corrupt(images[rows], name, severity, generator=generator)
    return copies


def corrupt_batch(images: "Tensor", generator: "torch.Generator") -> "Tensor":
    """Corrupt uint8 (N, 3, H, W) by the extra corruptions, and at severities 1 to 5, in turn."""
    from sourceward.data.corruptions import EXTRA_CORRUPTIONS

    copies = images.clone()
    for number, name in enumerate(EXTRA_CORRUPTIONS):
        rows = slice(number, None, len(EXTRA_CORRUPTIONS))
        copies[rows] = corrupt_cycling(images[rows], name, number, generator)
    return copies


@dataclass(frozen=True, slots=True)
class CorruptedImage:
    """A clean image that is corrupted whenever it is read, always in the same way."""

    clean: ImageItem
    name: str
    severity: int
    shape: Geometry
    seed: int

    def read(self) -> bytes:
        pixels = decode_image(self.clean.read(), self.shape)[None]
        pixels = _corrupt_arrays(pixels, self.name, self.severity, self.seed)[0]
        stream = io.BytesIO()
        Image.fromarray(pixels.transpose(1, 2, 0)).save(stream, "bmp")
        return stream.getvalue()

    def signature(self) -> str:
        return f"{self.clean.signature()}:{self.name}:{self.severity}:{self.shape}:{self.seed}"
