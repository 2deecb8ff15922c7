"""CIFAR-10-C and ImageNet-C as published, and the same corruptions made here from clean images."""

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sourceward.data.dataset import DomainDataset, ImageItem, Problem, build
from sourceward.data.decode import Geometry, decode_image, geometry, resize_arrays
from sourceward.data.known.entry import known_dataset
from sourceward.data.tree import StoredFile, Tree, is_image, read_tree
from sourceward.errors import InputError

CLEAN = "clean"
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_RECORD = 1 + 3 * 32 * 32  # one label byte, then three planes of 32 x 32
CIFAR_TEST = 10_000  # images for each severity in a published .npy


@known_dataset(
    "cifar10_c",
    about="CIFAR-10 test images under 15 corruptions (and 4 extra) of 5 severities; the clean training "
    "images are the source (Hendrycks and Dietterich 2019).",
    where="Zenodo, https://zenodo.org/records/2535967 ; CIFAR-10 in its binary version from "
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    layout="<root>/labels.npy and <root>/<corruption>.npy; clean images as data_batch_*.bin and "
    "test_batch.bin below <root> or in `clean`. Without .npy files, they are made from the test set.",
)
def read_cifar10_c(
    path: str | Path,
    *,
    clean: str | Path | None = None,
    severity: int = 5,
    corruptions: Sequence[str] | None = None,
    seed: int = 0,
) -> DomainDataset:
    """`corruptions`: the 15 test ones unless given."""
    names = _chosen(corruptions, severity)
    root, clean_root = Path(path), Path(clean or path)
    published = {name: root / f"{name}.npy" for name in names if (root / f"{name}.npy").exists()}
    train, train_labels = _read_cifar_bin(clean_root, "data_batch_*.bin")
    images, labels, domains = [train], [train_labels], [CLEAN] * len(train)
    problems = []
    if published:
        truth = _load_npy(root / "labels.npy")
        rows = slice((severity - 1) * CIFAR_TEST, severity * CIFAR_TEST)
        for name, file in published.items():
            images.append(np.moveaxis(_load_npy(file)[rows], -1, 1))
            labels.append(truth[rows])
            domains += [name] * len(images[-1])
        problems = [
            Problem("missing_domain", name, f"'{root}' has no {name}.npy.")
            for name in names
            if name not in published
        ]
    else:
        test, test_labels = _read_cifar_bin(clean_root, "test_batch.bin")
        if len(test):
            for name in names:
                images.append(corrupt_arrays(test, name, severity, seed))
                labels.append(test_labels)
                domains += [name] * len(test)
    if not domains:
        raise InputError(
            f"'{path}' holds neither CIFAR-10-C (labels.npy, <corruption>.npy) nor the binary CIFAR-10 "
            "(data_batch_1.bin). The pickled CIFAR-10 is not read: get the binary version."
        )
    present = list(dict.fromkeys(domains))
    return build(
        "image",
        np.concatenate(images),
        [CIFAR10[code] for code in np.concatenate(labels)],
        domains,
        _numbered(domains),
        classes=CIFAR10,
        domain_names=present,
        targets=[name for name in present if name != CLEAN],
        problems=problems,
        name=str(path),
    )


@known_dataset(
    "imagenet_c",
    about="ImageNet validation images under 15 corruptions (and 4 extra) of 5 severities, 1,000 classes "
    "(Hendrycks and Dietterich 2019).",
    where="Zenodo, https://zenodo.org/records/2235448 ; the clean images from https://www.image-net.org",
    layout="<root>/[<group>/]<corruption>/<severity>/<wnid>/<image>; clean images in <root>/<part>/<wnid>/, "
    "with <part> one of train, val and clean, or in the folders <wnid>/ of `clean`. "
    "Without <corruption> folders the corruptions are made while reading.",
)
def read_imagenet_c(
    path: str | Path,
    *,
    clean: str | Path | None = None,
    severity: int = 5,
    corruptions: Sequence[str] | None = None,
    size: int = 224,
    seed: int = 0,
) -> DomainDataset:
    names = _chosen(corruptions, severity)
    tree = read_tree(path)
    rows = [row for name in names for row in _published(tree, name, severity)]
    source = _clean_rows(tree if clean is None else read_tree(clean))
    if not rows and not source:
        raise InputError(
            f"'{path}' holds neither <corruption>/<severity>/<wnid>/<image> nor clean images in train/, val/ "
            "or clean/. Pass the clean images with clean=FOLDER."
        )
    dataset = build(
        "image",
        tuple(file for *_, file in source + rows),
        [label for _, label, _, _ in source + rows],
        [domain for domain, *_ in source + rows],
        [name for _, _, name, _ in source + rows],
        domain_names=[d for d in (CLEAN, *names) if d in {row[0] for row in source + rows}],
        name=str(path),
    )
    if not rows:
        return corrupted_domains(dataset, names, severity, size=size, seed=seed)
    return replace(dataset, targets=tuple(d for d in dataset.domain_names if d != CLEAN))


def _published(tree: Tree, corruption: str, severity: int) -> list[tuple[str, str, str, StoredFile]]:
    """(domain, class, id, file) of one corruption."""
    rows = []
    for path, file in tree.images().items():
        parts = path.split("/")
        if len(parts) >= 4 and parts[-4:-2] == [corruption, str(severity)]:
            rows.append((corruption, parts[-2], "/".join(parts[-4:]), file))
    return rows


def _clean_rows(tree: Tree) -> list[tuple[str, str, str, StoredFile]]:
    for folder in ("train", "val", CLEAN, None):
        files = (tree if folder is None else tree.under(folder)).files
        rows = [
            (CLEAN, path.split("/")[0], f"{CLEAN}/{path}", file)
            for path, file in files.items()
            if path.count("/") == 1 and is_image(path)
        ]
        if rows:
            return rows
    return []


@dataclass(frozen=True, slots=True)
class CorruptedImage:
    """A clean image that is corrupted each time it is read, always in the same way."""

    clean: ImageItem
    name: str
    severity: int
    shape: Geometry
    seed: int

    def read(self) -> bytes:
        pixels = decode_image(self.clean.read(), self.shape)[None]
        pixels = corrupt_arrays(pixels, self.name, self.severity, self.seed)[0]
        stream = io.BytesIO()
        Image.fromarray(pixels.transpose(1, 2, 0)).save(stream, "bmp")
        return stream.getvalue()

    def signature(self) -> str:
        return f"{self.clean.signature()}:{self.name}:{self.severity}:{self.shape}:{self.seed}"


def corrupted_domains(
    clean: DomainDataset,
    corruptions: Sequence[str] | None = None,
    severity: int = 5,
    *,
    size: int | None = None,
    seed: int = 0,
) -> DomainDataset:
    """`clean` as the domain "clean" and, as targets, its validation images (all, without a split) corrupted.

    Arrays are corrupted here and now, after being resized to `size` when given; image files as they are read.
    """
    names = _chosen(corruptions, severity)
    rows = np.arange(len(clean)) if clean.split is None else np.flatnonzero(clean.split == "val")
    test = clean.select(rows)
    if isinstance(clean.items, np.ndarray):
        shape = geometry(size or (clean.items.shape[-2], clean.items.shape[-1]))
        base, pixels = (resize_arrays(data.items, shape).numpy() for data in (clean, test))
        items: Any = np.concatenate([base, *(corrupt_arrays(pixels, name, severity, seed) for name in names)])
    else:
        shape = geometry(size or 224)
        keys = [zlib.crc32(f"{seed}{name}".encode()) for name in test.ids]
        made = [CorruptedImage(i, n, severity, shape, key) for n in names for i, key in zip(test.items, keys)]
        items = (*clean.items, *made)
    labels = [clean.classes[code] for code in (*clean.labels, *np.tile(test.labels, len(names)))]
    split = None
    if clean.split is not None:
        split = [*clean.split.tolist(), *["val"] * (len(test) * len(names))]
    return build(
        "image",
        items,
        labels,
        [CLEAN] * len(clean) + [name for name in names for _ in range(len(test))],
        [*(f"{CLEAN}/{i}" for i in clean.ids), *(f"{name}/{i}" for name in names for i in test.ids)],
        classes=clean.classes,
        domain_names=(CLEAN, *names),
        split=split,
        problems=clean.problems,
        targets=names,
        name=clean.name,
    )


def corrupt_arrays(pixels: np.ndarray, name: str, severity: int, seed: int, chunk: int = 1000) -> np.ndarray:
    """uint8 (N, 3, H, W) corrupted in batches; the seed and the corruption's name decide the noise."""
    from sourceward.data.corruptions import corrupt

    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}{name}{severity}".encode()))
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    return torch.cat(
        [corrupt(part, name, severity, generator=generator) for part in images.split(chunk)]
    ).numpy()


def _chosen(corruptions: Sequence[str] | None, severity: int) -> tuple[str, ...]:
    from sourceward.data.corruptions import CORRUPTIONS, TEST_CORRUPTIONS

    if severity not in range(1, 6):
        raise InputError(f"Expected `severity` to be 1 (mild) to 5 (severe), but got {severity}.")
    names = TEST_CORRUPTIONS if corruptions is None else tuple(corruptions)
    for name in names:
        CORRUPTIONS[name]  # an unknown one is answered with the nearest names
    return names


def _read_cifar_bin(root: Path, pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (N, 3, 32, 32) and labels (N,) of binary CIFAR-10; none when the files are absent."""
    files = sorted(root.rglob(pattern)) if root.is_dir() else []
    data = b"".join(file.read_bytes() for file in files)
    if len(data) % CIFAR_RECORD:
        raise InputError(
            f"Expected records of {CIFAR_RECORD} bytes in {pattern} below '{root}'. Download them again."
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _load_npy(file: Path) -> np.ndarray:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"'{file}' cannot be read as .npy: {error}. Download it again.") from None


def _numbered(domains: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    names = []
    for domain in domains:
        seen[domain] = seen.get(domain, -1) + 1
        names.append(f"{domain}/{seen[domain]:05d}")
    return names
