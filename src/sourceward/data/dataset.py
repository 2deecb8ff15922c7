"""`DomainDataset`, which every reader returns: samples with class, domain and id, and problems found; and its
split into rows to train on and rows to validate on.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, Literal, Protocol

import numpy as np

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.reading import printable

Kind = Literal["image", "text", "features"]


class ImageItem(Protocol):
    """An image that is read on demand."""

    def read(self) -> bytes:
        """Return the encoded image."""

    def signature(self) -> str:
        """Return a short text that changes when the image does, without reading it."""


@dataclass(frozen=True)
class Problem:
    """Something wrong with the data that was found while reading it."""

    kind: str
    where: str
    message: str
    domain: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class DomainDataset:
    """Labelled samples of several domains.

    `items` is a tuple of `ImageItem` or an uint8 array (N, 1 or 3, H, W) for images, a tuple of strings for
    texts, a float32 array (N, D) for features. `labels` and `domains` are int64 (N,) codes into `classes` and
    `domain_names`. `ids` do not depend on the machine. `split` is None, or "train" or "val" for each sample,
    where the dataset or its reader defines a split; `split_by` says which. `targets` are the domains that the
    dataset holds out. `problems` lists everything that could not be used; nothing is dropped silently.
    """

    kind: Kind
    items: Any
    labels: np.ndarray
    domains: np.ndarray
    classes: tuple[str, ...]
    domain_names: tuple[str, ...]
    ids: tuple[str, ...]
    split: np.ndarray | None = None
    problems: tuple[Problem, ...] = ()
    targets: tuple[str, ...] = ()
    name: str = ""
    split_by: str = "by the split that the data came with"

    def __repr__(self) -> str:
        domains, classes = len(self.domain_names), len(self.classes)
        return f"DomainDataset({len(self):,} of kind {self.kind}, {domains} domains, {classes} classes)"

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Sequence[int] | np.ndarray) -> "DomainDataset":
        """Return the samples at `indices`, in that order; classes, domains and problems do not change."""
        rows = np.asarray(indices)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        items = self.items[rows] if isinstance(self.items, np.ndarray) else tuple(self.items[i] for i in rows)
        return replace(
            self,
            items=items,
            labels=self.labels[rows],
            domains=self.domains[rows],
            ids=tuple(self.ids[i] for i in rows),
            split=None if self.split is None else self.split[rows],
        )

    def of_domains(self, names: str | Sequence[str]) -> "DomainDataset":
        """Return the domains in `names` only, renumbered in that order."""
        wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
        for name in wanted:
            if name not in self.domain_names:
                raise unknown_name("domain", name, self.domain_names)
        code = np.full(len(self.domain_names), -1, dtype=np.int64)
        code[[self.domain_names.index(name) for name in wanted]] = np.arange(len(wanted))
        chosen = self.select(code[self.domains] >= 0)
        return replace(
            chosen,
            domains=code[chosen.domains],
            domain_names=wanted,
            problems=tuple(p for p in self.problems if p.domain is None or p.domain in wanted),
            targets=tuple(t for t in self.targets if t in wanted),
        )

    def without(self, target: str | Sequence[str]) -> "DomainDataset":
        """Return all domains except `target`: the sources."""
        left_out = (target,) if isinstance(target, str) else tuple(target)
        for name in left_out:
            if name not in self.domain_names:
                raise unknown_name("domain", name, self.domain_names)
        return self.of_domains([name for name in self.domain_names if name not in left_out])

    def train_val_indices(self, fraction: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return training rows and validation rows.

        A given split is used as it is. Otherwise `fraction` of every class of every domain validates, at
        least one sample of two or more, and never all. The side of a sample depends on the seed, its id and
        its own class and domain, not on the order of the samples or on the labels of other domains.
        """
        if self.split is not None:
            held = self.split == "val"
        else:
            if not 0 < fraction < 1:
                raise InputError(
                    f"Expected `fraction` to lie between 0 and 1, but got {fraction}. The usual value is 0.1."
                )
            held = np.zeros(len(self), dtype=bool)
            rank = np.array([_digest(f"{seed}\0{name}")[:16] for name in self.ids])
            stratum = self.domains * len(self.classes) + self.labels
            order = np.lexsort((rank, stratum))
            starts = np.flatnonzero(np.diff(stratum[order], prepend=-1))
            for rows in np.split(order, starts[1:]):
                wanted = min(max(1, round(fraction * len(rows))), len(rows) - 1)
                held[rows[:wanted]] = True
        return np.flatnonzero(~held), np.flatnonzero(held)

    def train_val(self, fraction: float = 0.1, seed: int = 0) -> tuple["DomainDataset", "DomainDataset"]:
        """Return training and validation samples, split by `train_val_indices`."""
        train, val = self.train_val_indices(fraction, seed)
        return self.select(train), self.select(val)

    def counts(self) -> np.ndarray:
        """Return the number of samples, int64 (domains, classes)."""
        shape = len(self.domain_names), len(self.classes)
        flat = self.domains * shape[1] + self.labels
        return np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)

    def missing_classes(self) -> list[tuple[str, str]]:
        """Return the pairs (domain, class) without samples."""
        empty = np.argwhere(self.counts() == 0)
        return [(self.domain_names[d], self.classes[c]) for d, c in empty]

    def content_hash(self) -> str:
        """Return a hash of ids and items, not of labels; of image files, id and size in bytes are hashed."""
        hasher = hashlib.blake2b(self.kind.encode(), digest_size=16)
        hasher.update(_bytes(self.ids))
        if isinstance(self.items, np.ndarray):
            hasher.update(f"{self.items.dtype}{self.items.shape}".encode())
            for start in range(0, len(self.items), 4096):  # in chunks: the array may be memory-mapped
                hasher.update(np.ascontiguousarray(self.items[start : start + 4096]).data)
        else:
            texts = self.items if self.kind == "text" else (item.signature() for item in self.items)
            hasher.update(_bytes(texts))
        return hasher.hexdigest()

    def fingerprint(self) -> str:
        """Return a hash of content, labels, domains, their names and the split, equal on every machine."""
        hasher = hashlib.blake2b(self.content_hash().encode(), digest_size=16)
        for names in (self.classes, self.domain_names):
            hasher.update(_bytes(names) + b"\1")
        for codes in (self.labels, self.domains):
            hasher.update(np.ascontiguousarray(codes, dtype="<i8").data)
        if self.split is not None:
            hasher.update(np.ascontiguousarray(self.split == "val").data)
        return hasher.hexdigest()


def build(
    kind: Kind,
    items: Any,
    labels: Sequence[str],
    domains: Sequence[str],
    ids: Sequence[str],
    *,
    classes: Sequence[str] | None = None,
    domain_names: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
    problems: Iterable[Problem] = (),
    targets: Sequence[str] = (),
    name: str = "",
) -> DomainDataset:
    """Build a dataset from label and domain names, and report classes that a domain lacks.

    What is not valid Unicode in names and texts is written as escapes, since no file could hold it.
    """
    labels, domains = [printable(text) for text in labels], [printable(text) for text in domains]
    classes = natural_order(labels) if classes is None else tuple(map(printable, classes))
    domain_names = natural_order(domains) if domain_names is None else tuple(map(printable, domain_names))
    dataset = DomainDataset(
        kind=kind,
        items=tuple(map(printable, items)) if kind == "text" else items,
        labels=_codes("class", labels, classes, name),
        domains=_codes("domain", domains, domain_names, name),
        classes=classes,
        domain_names=domain_names,
        ids=tuple(map(printable, ids)),
        split=None if split is None else np.asarray(split, dtype="<U5"),
        problems=tuple(replace(p, domain=p.domain and printable(p.domain)) for p in problems),
        targets=tuple(map(printable, targets)),
        name=printable(name),
    )
    missing = tuple(
        Problem("missing_class", f"{d}/{c}", f"Domain {d!r} has no sample of class {c!r}.", d)
        for d, c in dataset.missing_classes()
    )
    return replace(dataset, problems=dataset.problems + missing)


def natural_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names in order: numbers by value, others alphabetically.

    >>> natural_order(["10", "9", "10"]), natural_order(["b", "a", "10"])
    (('9', '10'), ('10', 'a', 'b'))
    """
    distinct = set(names)
    try:
        values = {text: float(text) for text in distinct}
        numbers = sorted(text for text in distinct if not isnan(values[text]))
        # NaN compares with nothing: among numbers, it would leave the order to that of the set.
        return (*sorted(numbers, key=lambda text: values[text]), *sorted(distinct - set(numbers)))
    except ValueError:
        return tuple(sorted(distinct))


def zero_based(labels: np.ndarray, num_classes: int, where: str) -> tuple[np.ndarray, bool]:
    """Return label codes that count from 0, and whether they counted from 1.

    >>> zero_based(np.array([1, 2, 3]), 3, "list.txt")
    (array([0, 1, 2]), True)
    """
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise InputError(
            f"Expected the labels in {where!r} to be a list of whole numbers, but got {labels.dtype} of "
            f"shape {labels.shape}."
        )
    labels = labels.astype(np.int64)
    if not len(labels) or (labels.min() >= 0 and labels.max() < num_classes):
        return labels, False
    if labels.min() >= 1 and labels.max() == num_classes:
        return labels - 1, True
    raise InputError(
        f"Expected the labels in {where!r} to run from 0 to {num_classes - 1} or from 1 to {num_classes}, "
        f"but got {labels.min()} to {labels.max()}. Do these labels belong to these class names?"
    )


def _codes(kind: str, values: Sequence[str], names: Sequence[str], where: str) -> np.ndarray:
    code = {name: index for index, name in enumerate(names)}
    try:
        return np.fromiter((code[value] for value in values), dtype=np.int64, count=len(values))
    except KeyError as missing:
        raise InputError(
            f"{where!r} holds the {kind} {missing.args[0]!r}, expected one of: {', '.join(names)}."
        ) from None


def _digest(text: str) -> str:
    return hashlib.blake2b(_bytes([text]), digest_size=8).hexdigest()


def _bytes(texts: Iterable[str]) -> bytes:
    """Encode texts, also those of a caller that are not valid Unicode."""
    return "\0".join(texts).encode(errors="surrogatepass")


SourceSplit = tuple[DomainDataset, list[slice], list[slice]]
"""The reordered samples, the training rows of each source, the validation rows of each source."""


def split_sources(sources: DomainDataset, fraction: float = 0.1) -> SourceSplit:
    """Reorder the samples: training rows source by source, then validation rows source by source.

    Each part is shuffled, so that its first rows are a random sample of it.
    """
    parts = []
    for rows in sources.train_val_indices(fraction):
        rows = rows[np.random.default_rng(0).permutation(len(rows))]
        parts += [rows[sources.domains[rows] == code] for code in range(len(sources.domain_names))]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    slices = [slice(end - len(part), end) for part, end in zip(parts, ends)]
    count = len(sources.domain_names)
    return sources.select(np.concatenate(parts)), slices[:count], slices[count:]
