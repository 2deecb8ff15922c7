"""Official split lists: text files with one image per line, with or without its label."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sourceward._util.errors import InputError
from sourceward.data.dataset import DomainDataset, Problem, zero_based
from sourceward.data.tree import Tree, read_tree

Suffixes = dict[str, tuple[str, ...]]  # "train" and "val" -> endings of the names of their list files


LABEL = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True)
class ListedImage:
    """One line of a list."""

    path: str
    label: int | None
    split: str
    domain: str


def find_lists(
    tree: Tree, domains: dict[str, str], suffixes: Suffixes, splits: str | Path | None = None
) -> list[ListedImage]:
    """Return the lines of all lists in `splits`, else in the tree or in a folder `splits` beside it."""
    beside = tree.root.parent / "splits"
    if splits is not None:
        places = [read_tree(splits)]
    else:
        places = [tree] + ([read_tree(beside)] if beside.is_dir() else [])
    for place in places:
        listed = _read_lists(place, domains, suffixes)
        if listed:
            return listed
    if splits is not None:
        endings = " and ".join(f"<domain>{names[0]}" for names in suffixes.values())
        raise InputError(f"'{splits}' holds no split lists: expected files {endings}.")
    return []


def _read_lists(place: Tree, domains: dict[str, str], suffixes: Suffixes) -> list[ListedImage]:
    names = {
        f"{folder}{ending}".lower(): (domain, split)
        for folder, domain in domains.items()
        for split, endings in suffixes.items()
        for ending in endings
    }
    listed = []
    for path in place.files:
        found = names.get(path.rsplit("/", 1)[-1].lower())
        if found:
            domain, split = found
            lines = place.text(path).splitlines()
            listed += [_parse(line, split, domain) for line in lines if line.strip()]
    return listed


def _parse(line: str, split: str, domain: str) -> ListedImage:
    path, _, last = line.strip().rpartition(" ")
    if path and LABEL.fullmatch(last):
        return ListedImage(path.strip(), int(last), split, domain)
    return ListedImage(line.strip(), None, split, domain)


def apply_lists(dataset: DomainDataset, listed: Sequence[ListedImage]) -> DomainDataset:
    """Return `dataset` with the split of the lists. Images are matched by <domain>/<class>/<file>.

    Images that are in no list train. They are reported, as are lines without an image and labels that
    contradict the class folders.
    """
    if not listed:
        return dataset
    lines = {_name(line): line for line in listed}
    times = Counter(_name(line) for line in listed)
    row_of = {name: row for row, name in enumerate(dataset.ids)}
    problems = []
    for name, line in lines.items():
        if times[name] > 1:
            message = f"{name!r} is listed more than once; its last line counts."
            problems.append(Problem("listed_twice", name, message, line.domain))
        if name not in row_of:
            message = f"{name!r} is in a split list, but not on disk."
            problems.append(Problem("listed_but_missing", name, message, line.domain))
    for name in dataset.ids:
        if name not in lines:
            message = f"{name!r} is in no split list; it is used for training."
            problems.append(Problem("unlisted", name, message, name.split("/")[0]))
    problems += _check_labels(dataset, {row_of[name]: line for name, line in lines.items() if name in row_of})
    split = ["val" if name in lines and lines[name].split == "val" else "train" for name in dataset.ids]
    return replace(
        dataset,
        split=np.asarray(split),
        split_by="by the official lists",
        problems=dataset.problems + tuple(problems),
    )


def _name(line: ListedImage) -> str:
    """Return <domain>/<class>/<file>; folders that the list writes before these are ignored."""
    return "/".join([line.domain, *line.path.replace("\\", "/").split("/")[-2:]])


def _check_labels(dataset: DomainDataset, lines: dict[int, ListedImage]) -> list[Problem]:
    rows = [row for row, line in lines.items() if line.label is not None]
    if not rows:
        return []
    given = np.array([lines[row].label for row in rows])
    labels, one_based = zero_based(given, len(dataset.classes), dataset.name)
    wrong = [dataset.ids[row] for row in np.array(rows)[labels != dataset.labels[rows]]]
    problems = []
    if wrong:
        message = f"{len(wrong):,} labels in the split lists contradict the class folders, "
        message += f"first {wrong[0]!r}; the folders are used."
        problems.append(Problem("label_mismatch", wrong[0], message))
    if one_based:
        message = "Labels count from 1; they are read as counting from 0."
        problems.append(Problem("one_based_labels", "split lists", message))
    return problems
