"""Diagnose a dataset: what it holds, what is wrong with it, and what `fit` would do with it."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sourceward._util.errors import InputError
from sourceward.data.dataset import DomainDataset, Problem
from sourceward.data.decode import Progress, map_threads, open_image, reason_of
from sourceward.data.open import open_dataset
from sourceward.data.tree import read_tree

BROKEN = ("empty_file", "missing_file", "unreadable")
Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Refusal:
    """Why `fit` would refuse the data, and what to do about it."""

    reason: str
    fix: str


@dataclass(frozen=True)
class SizeRange:
    """Smallest, median and largest (width, height) of the images, by area."""

    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]


@dataclass(frozen=True)
class Diagnosis:
    """The result of `doctor`. `counts` is (domains, classes).

    Groups of ids of identical samples: `duplicates` occur in several domains, `contradictions` in several
    classes, `repeats` in one class of one domain. A group may be in more than one of these.
    """

    name: str
    kind: str
    num_samples: int
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    targets: tuple[str, ...] = ()
    split: tuple[int, int] | None = None
    split_by: str = ""
    image_sizes: SizeRange | None = None
    duplicates: Groups = ()
    contradictions: Groups = ()
    repeats: Groups = ()
    broken: tuple[Problem, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    notes: tuple[Problem, ...] = ()
    imbalance: float = 1.0
    plan: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and text for JSON."""
        return asdict(self)


class Findings(NamedTuple):
    """The examination of one item: hash of its content, (width, height), why it cannot be read."""

    digest: bytes
    size: tuple[int, int] | None = None
    reason: str | None = None


def doctor(
    data: DomainDataset | str | Path,
    *,
    target: str | Sequence[str] = (),
    allow_missing: bool = False,
    quick: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Diagnosis:
    """Examine a dataset. Every image is decoded; `quick` reads headers only and misses truncated files.

    `target` names domains that will not be trained on: their gaps are no reason for a refusal.
    """
    try:
        dataset = open_dataset(data, **options)
    except InputError as error:
        return _unopened(str(data), error)
    found = _examine(dataset, quick, workers, progress)
    across, contradictions, repeats = _equal_samples(dataset, [item.digest for item in found])
    unreadable = tuple(
        Problem("unreadable", dataset.ids[row], item.reason, dataset.domain_names[dataset.domains[row]])
        for row, item in enumerate(found)
        if item.reason is not None
    )
    broken = tuple(p for p in dataset.problems if p.kind in BROKEN) + unreadable
    left_out = ((target,) if isinstance(target, str) else tuple(target)) or dataset.targets
    sources = dataset.without(left_out) if left_out else dataset
    trained_on = tuple(p for p in broken if p.domain is None or p.domain in sources.domain_names)
    counts, (train, val) = dataset.counts(), dataset.train_val_indices()
    return Diagnosis(
        name=dataset.name,
        kind=dataset.kind,
        num_samples=len(dataset),
        domains=dataset.domain_names,
        classes=dataset.classes,
        counts=tuple(tuple(int(n) for n in row) for row in counts),
        targets=tuple(left_out),
        split=None if dataset.split is None else (len(train), len(val)),
        split_by=_split_by(dataset),
        image_sizes=_size_range([item.size for item in found if item.size]),
        duplicates=across,
        contradictions=contradictions,
        repeats=repeats,
        broken=broken,
        missing=tuple(dataset.missing_classes()),
        notes=tuple(p for p in dataset.problems if p.kind not in (*BROKEN, "missing_class")),
        imbalance=float(counts.max() / max(1, counts[counts > 0].min())) if counts.any() else 1.0,
        plan=_plan(dataset, sources),
        refusals=refuse(sources, trained_on, allow_missing),
    )


def _examine(
    dataset: DomainDataset, quick: bool, workers: int | None, progress: Progress | None
) -> list[Findings]:
    def examine(row: int) -> Findings:
        item = dataset.items[row]
        if isinstance(item, np.ndarray):
            size = (item.shape[-1], item.shape[-2]) if dataset.kind == "image" else None
            return Findings(_digest(np.ascontiguousarray(item).tobytes()), size)
        return Findings(_digest(item.encode())) if isinstance(item, str) else _examine_image(item, quick)

    found = []
    for finding in map_threads(examine, range(len(dataset)), workers):
        found.append(finding)
        if progress is not None:
            progress(len(found), len(dataset))
    return found


def _examine_image(item: Any, quick: bool) -> Findings:
    digest, size = b"", None
    try:
        data = item.read()
        digest = _digest(data)
        with open_image(data) as image:
            size = image.size
            if not quick:
                image.load()
        return Findings(digest, size)
    except Exception as error:  # every format of PIL has its own exceptions for broken files
        return Findings(digest, size, reason_of(error))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _equal_samples(dataset: DomainDataset, digests: list[bytes]) -> tuple[Groups, Groups, Groups]:
    """Group ids of identical samples: across domains, across classes, within one class of a domain."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        groups[digest].append(row)
    groups.pop(b"", None)  # could not be read
    across, contradictions, repeats = [], [], []
    for rows in groups.values():
        if len(rows) == 1:
            continue
        groups_of: dict[tuple[int, int], list[str]] = defaultdict(list)
        for row in rows:
            groups_of[int(dataset.domains[row]), int(dataset.labels[row])].append(dataset.ids[row])
        ids = tuple(dataset.ids[row] for row in rows)
        if len({domain for domain, _ in groups_of}) > 1:
            across.append(ids)
        if len({label for _, label in groups_of}) > 1:
            contradictions.append(ids)
        repeats += [tuple(same) for same in groups_of.values() if len(same) > 1]
    return tuple(across), tuple(contradictions), tuple(repeats)


def _size_range(sizes: list[tuple[int, int]]) -> SizeRange | None:
    ordered = sorted(sizes, key=lambda size: size[0] * size[1])
    return SizeRange(ordered[0], ordered[len(ordered) // 2], ordered[-1]) if ordered else None


def _split_by(dataset: DomainDataset) -> str:
    return "a tenth of each class of each domain" if dataset.split is None else dataset.split_by


def refuse(sources: DomainDataset, broken: tuple[Problem, ...], allow_missing: bool) -> tuple[Refusal, ...]:
    """Return every reason for which `fit` would refuse these sources."""
    found = []
    if len(sources.classes) < 2:
        found.append(Refusal("There is only one class.", "Add samples of at least one other class."))
    if not len(sources):
        found.append(Refusal("There is no source domain.", "Remove at least one domain from --target."))
        return tuple(found)
    missing = sources.missing_classes()
    if missing and not allow_missing:
        domain, label = missing[0]
        more = f" ({len(missing) - 1:,} more such gaps)" if len(missing) > 1 else ""
        reason = f"Domain {domain!r} has no {_noun(sources)} of class {label!r}{more}"
        reason += "; the energy of that source cannot keep this label."
        found.append(Refusal(reason, f"Remove the class, add {_noun(sources)}, or pass --allow-missing."))
    if broken:
        reason = f"{len(broken):,} file{'s' * (len(broken) > 1)} cannot be read, first {broken[0].where!r}."
        found.append(Refusal(reason, "Replace or remove them."))
    found += _refuse_split(sources)
    if any(p.kind == "nonfinite" for p in sources.problems):
        rows = sum(p.kind == "nonfinite" for p in sources.problems)
        found.append(
            Refusal(f"{rows:,} feature rows hold NaN or infinity.", "Remove or recompute those rows.")
        )
    elif sources.kind == "features":
        from sourceward.functional.statistics import value_range_problem  # imports torch

        wrong = value_range_problem(sources.items, "`features`")
        found += [Refusal(*wrong)] if wrong else []
    return tuple(found)


def _refuse_split(sources: DomainDataset) -> list[Refusal]:
    """Check that every source has training samples and that some samples validate."""
    given, (train, val) = sources.split is not None, sources.train_val_indices()
    absent = np.setdiff1d(sources.domains, sources.domains[train])
    if len(absent):
        name = sources.domain_names[absent[0]]
        reason = f"Domain {name!r} has no training samples: the given split uses all of them for validation."
        return [Refusal(reason, "Validate on fewer, or remove the split.")]
    if len(val):
        return []
    if given:
        reason = "There are no validation samples: the given split has none."
        return [Refusal(reason, "Add some, or remove the split.")]
    reason = "There are no validation samples: every class of every source has at most one sample."
    return [Refusal(reason, f"Add {_noun(sources)}.")]


def _plan(dataset: DomainDataset, sources: DomainDataset) -> tuple[str, ...]:
    """Return what `fit` would do, in sentences."""
    train, val = sources.train_val_indices()
    held = [name for name in dataset.domain_names if name not in sources.domain_names]
    lines = [
        f"Train on {len(train):,} {_noun(dataset)} of {len(sources.domain_names)} source domains "
        f"({', '.join(sources.domain_names)}) and {len(dataset.classes)} classes.",
        f"Validate on {len(val):,} source {_noun(dataset)}, {_split_by(dataset)}.",
        f"Hold out {', '.join(held)}." if held else "Use every domain as a source; --target holds one out.",
    ]
    if len(sources.domain_names) == 1:
        lines.append(f"With one source only, start training chains from {_chain_start(dataset)}.")
    if len(sources.domain_names) < 3:
        lines.append("Estimate nothing and leave adaptation off: validation needs three sources.")
    if dataset.kind == "image":
        lines.append(f"Decoded to 224 x 224 the images take {len(dataset) * 3 * 224 * 224 / 1e9:.1f} GB.")
    return tuple(lines)


def _chain_start(dataset: DomainDataset) -> str:
    """Return what the training chains of a single source start from."""
    if dataset.kind != "image":
        return "its own features with noise"
    from sourceward.data.corruptions import EXTRA_CORRUPTIONS

    return f"corrupted copies of its images ({', '.join(EXTRA_CORRUPTIONS)})"


def _noun(dataset: DomainDataset) -> str:
    return {"image": "images", "text": "texts", "features": "samples"}[dataset.kind]


def _unopened(name: str, error: InputError) -> Diagnosis:
    """Diagnose a folder or .tar that is not a dataset by listing its contents; raise for anything else."""
    path = Path(name)
    if not (path.is_dir() or path.suffix.lower() == ".tar"):
        raise error
    folders: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    tree = read_tree(path)
    for file in tree.files:
        folders[file.rpartition("/")[0] or "<root>"][file not in tree.images()] += 1
    notes = tuple(
        Problem("found", folder, f"{folder}: {images:,} images, {others:,} other files.")
        for folder, (images, others) in sorted(folders.items())[:20]
    )
    reason = str(error).split(" `sourceward doctor")[0]
    fix = "Arrange the files as <root>/<domain>/<class>/<image>."
    return Diagnosis(name, "image", 0, (), (), (), notes=notes, refusals=(Refusal(reason, fix),))
