"""CIFAR-10-C and ImageNet-C, as published or made from the clean images."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.reading import check_regular, read_regular
from sourceward._util.values import short
from sourceward.data.corrupting import CLEAN, SPLIT_BY, choose_corruptions, corrupted_domains
from sourceward.data.dataset import DomainDataset, Problem, build, zero_based
from sourceward.data.known.entry import known_dataset
from sourceward.data.tree import StoredFile, Tree, is_image, read_tree

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_RECORD = 1 + 3 * 32 * 32  # one label byte, then three planes of 32 x 32
CIFAR_TEST = 10_000  # images for each severity in a published .npy

Row = tuple[str, str, str, StoredFile]  # domain, class, id, file


@known_dataset(
    "cifar10_c",
    about="CIFAR-10 test images under 15 corruptions (and 4 extra) of 5 severities; the clean training "
    "images are the source (Hendrycks and Dietterich 2019).",
    where="Zenodo, https://zenodo.org/records/2535967 ; CIFAR-10 in its binary version from "
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    layout="<root>/[CIFAR-10-C/]labels.npy and <corruption>.npy beside it; clean images as data_batch_*.bin "
    "and test_batch.bin below <root> or in `clean`. Without .npy files, they are made from the test set.",
)
def read_cifar10_c(
    path: str | Path,
    *,
    clean: str | Path | None = None,
    severity: int = 5,
    corruptions: Sequence[str] | None = None,
    source_corruptions: Sequence[str] = (),
    seed: int = 0,
) -> DomainDataset:
    """Read targets for `corruptions` (default: the 15 test ones), sources for `source_corruptions`."""
    names = choose_corruptions(corruptions, severity)
    root = next((file.parent for file in sorted(Path(path).glob("*/labels.npy"))), Path(path))
    root = Path(path) if (Path(path) / "labels.npy").exists() else root
    published = [name for name in names if (root / f"{name}.npy").exists()]
    train = _read_cifar(Path(clean or path), "data_batch_*.bin", "train")
    if not published:
        test = _read_cifar(Path(clean or path), "test_batch.bin", "test")
        if not len(train) or not len(test):
            raise InputError(
                f"'{path}' holds neither CIFAR-10-C (labels.npy, <corruption>.npy) nor the binary CIFAR-10 "
                "(data_batch_1.bin, test_batch.bin). The pickled CIFAR-10 is not read."
            )
        return corrupted_domains(
            train, names, severity, test=test, source_corruptions=source_corruptions, seed=seed
        )
    absent = [
        Problem("missing_domain", name, f"'{path}' has no {name}.npy.")
        for name in names
        if name not in published
    ]
    parts = [_read_published(root, name, severity) for name in published]
    if len(train):
        parts.insert(
            0, corrupted_domains(train, (), severity, source_corruptions=source_corruptions, seed=seed)
        )
    return _join(parts, targets=published, problems=absent, name=str(path))


def _read_cifar(root: Path, pattern: str, part: str) -> DomainDataset:
    """Read binary CIFAR-10, images uint8 (N, 3, 32, 32); none if there are no files."""
    files = sorted(root.rglob(pattern)) if root.is_dir() else []
    data = b"".join(map(read_regular, files))
    if len(data) % CIFAR_RECORD:
        raise InputError(
            f"Expected records of {CIFAR_RECORD:,} bytes in {pattern} below '{root}'. Download them again."
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    return _arrays(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0], CLEAN, part, str(root))


def _read_published(root: Path, name: str, severity: int) -> DomainDataset:
    rows = slice((severity - 1) * CIFAR_TEST, severity * CIFAR_TEST)
    labels, images = (np.atleast_1d(_load_npy(root / f"{file}.npy"))[rows] for file in ("labels", name))
    if images.dtype != np.uint8 or labels.ndim != 1 or images.shape != (len(labels), 32, 32, 3):
        raise InputError(
            f"Expected '{root / name}.npy' to hold (50000, 32, 32, 3) images of uint8, one for each of "
            f"labels.npy, but rows {rows.start:,} to {rows.stop:,} are {images.dtype} of shape "
            f"{images.shape}. Download it again."
        )
    return _arrays(np.moveaxis(images, -1, 1), labels, name, f"{name}/{severity}", str(root))


def _arrays(pixels: np.ndarray, labels: np.ndarray, domain: str, prefix: str, name: str) -> DomainDataset:
    codes, _ = zero_based(labels, len(CIFAR10), name)
    ids = [f"{prefix}/{row:05d}" for row in range(len(pixels))]
    names = [CIFAR10[code] for code in codes]
    data = build("image", pixels, names, [domain] * len(ids), ids, classes=CIFAR10, domain_names=[domain])
    return replace(data, problems=(), name=name)  # missing classes are checked after joining


def _load_npy(file: Path) -> np.ndarray:
    check_regular(file, None)  # it is mapped, and its size is that of the file
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy parses a header as Python, and raises what its parser does
        raise InputError(f"'{file}' cannot be read as .npy: {short(error)}. Download it again.") from None


def _join(
    parts: list[DomainDataset], *, targets: Sequence[str], problems: list[Problem], name: str
) -> DomainDataset:
    """Join parts with equal classes and different domains; parts without a split validate."""
    domains = [part.domain_names[code] for part in parts for code in part.domains]
    data = build(
        "image",
        np.concatenate([part.items for part in parts]),
        [part.classes[code] for part in parts for code in part.labels],
        domains,
        [sample for part in parts for sample in part.ids],
        classes=parts[0].classes,
        domain_names=list(dict.fromkeys(domains)),
        split=[
            s for part in parts for s in (["val"] * len(part) if part.split is None else part.split.tolist())
        ],
        problems=problems,
        targets=targets,
        name=name,
    )
    return replace(data, split_by=SPLIT_BY)


@known_dataset(
    "imagenet_c",
    about="ImageNet validation images under 15 corruptions (and 4 extra) of 5 severities, 1,000 classes "
    "(Hendrycks and Dietterich 2019).",
    where="Zenodo, https://zenodo.org/records/2235448 ; the clean images from https://www.image-net.org",
    layout="<root>/[<group>/]<corruption>/<severity>/<wnid>/<image>; clean training images in train/<wnid>/, "
    "clean/<wnid>/ or the folders <wnid>/ of `clean`, never those of val/: the published images are made of "
    "them. Without <corruption> folders the corruptions are made while reading: of val/ where there is a "
    "train/, else of a tenth of the clean images, which then do not train.",
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
    names = choose_corruptions(corruptions, severity)
    tree = read_tree(path)
    published = [row for name in names for row in _published_rows(tree, name, severity)]
    whole = tree if clean is None else read_tree(clean)
    # Published images are made from val.
    parts = ("train", CLEAN, None) if published else ("train", "val", CLEAN, None)
    rows = next((found for part in parts if (found := _rows_under(whole, part))), []) + published
    if not rows:
        raise InputError(
            f"'{path}' holds neither <corruption>/<severity>/<wnid>/<image> nor clean images in train/, val/ "
            "or clean/. Pass the clean images with clean=FOLDER."
        )
    dataset = _files(rows, names, str(path))
    if published:
        return dataset
    held_out = _rows_under(whole, "val") if _rows_under(whole, "train") else []
    test = _files(held_out, names, str(path)) if held_out else None
    return corrupted_domains(dataset, names, severity, test=test, size=size, seed=seed)


def _files(rows: list[Row], names: Sequence[str], name: str) -> DomainDataset:
    domains = {row[0] for row in rows}
    return build(
        "image",
        tuple(file for *_, file in rows),
        [label for _, label, _, _ in rows],
        [domain for domain, *_ in rows],
        [sample for _, _, sample, _ in rows],
        domain_names=[name for name in (CLEAN, *names) if name in domains],
        targets=[name for name in names if name in domains],
        name=name,
    )


def _published_rows(tree: Tree, corruption: str, severity: int) -> list[Row]:
    rows = []
    for path, file in tree.images().items():
        parts = path.split("/")
        if len(parts) >= 4 and parts[-4:-2] == [corruption, str(severity)]:
            rows.append((corruption, parts[-2], "/".join(parts[-4:]), file))
    return rows


def _rows_under(tree: Tree, folder: str | None) -> list[Row]:
    """Return the images <wnid>/<image> of a folder."""
    files = (tree if folder is None else tree.under(folder)).files
    return [
        (CLEAN, path.split("/")[0], f"{CLEAN}/{path}", file)
        for path, file in files.items()
        if path.count("/") == 1 and is_image(path)
    ]
