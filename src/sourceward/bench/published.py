"""Published numbers to compare with: read from published.json, never measured here, and marked as such.

Accuracy in per cent unless the measure says otherwise. Selection and training are each paper's own, so a
published number is context. It was read in the paper that is named, or where `via` says: mostly the tables of
Xiao et al. (ICLR 2023), "the paper".
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.tables import target_of

PAPER = "Xiao et al., ICLR 2023"
BESIDE = ("ERM", "Tent", "T3A", "the paper, no adaptation", "the paper, 20 steps")
"""Methods of the comparison table that a bench's table shows."""


@dataclass(frozen=True)
class Published:
    """One published number.

    Args:
        method: name, as a table shows it.
        dataset, backbone: what it was measured on.
        mean: over targets.
        source: the paper that reports it.
        per_target: by target, where it was published.
        measure: `accuracy %`, `error %`, or what else.
        via: where it was read, if not in that paper.
        note: what a reader must know.
    """

    method: str
    dataset: str
    backbone: str
    mean: float
    source: str
    per_target: Mapping[str, float] = field(default_factory=dict)
    measure: str = "accuracy %"
    via: str = ""
    note: str = ""

    def mean_over(self, targets: Collection[str]) -> float | None:
        """Return the mean over `targets`: the published one where they are all of the data's, that of the
        published targets where they are some of them, None where it is not known.

        >>> row = Published("x", "pacs", "", 80.0, "", {"photo": 90.0, "cartoon": 85.0, "sketch": 65.0})
        >>> row.mean_over(["photo", "cartoon", "sketch"]), row.mean_over(["photo", "cartoon"])
        (80.0, 87.5)
        """
        if set(targets) >= set(self.per_target or targets_of(self.dataset)):
            return self.mean
        known = [self.per_target[name] for name in targets if name in self.per_target]
        return sum(known) / len(known) if known and len(known) == len(targets) else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; `published` is always true."""
        return {"published": True, **asdict(self)}


@cache
def _content() -> dict[str, Any]:
    return json.loads(files("sourceward.bench").joinpath("published.json").read_text(encoding="utf-8"))


def tables() -> list[str]:
    """Return the names of the tables."""
    return list(_content()["tables"])


def targets_of(dataset: str) -> list[str]:
    """Return the targets that a published mean is over; empty where they are not known."""
    return _content()["targets"].get(dataset, [])


def dataset_with(targets: Collection[str]) -> str:
    """Return the published dataset that has all of these targets, or ''."""
    named = {name: own for name, own in _content()["targets"].items() if not name.endswith("_c")}
    return next((name for name, own in named.items() if targets and set(targets) <= set(own)), "")


def published(table: str, **where: str) -> list[Published]:
    """Return the rows of a table whose fields have these values.

    >>> [row.mean for row in published("comparison", dataset="pacs", backbone="resnet18", method="Tent")]
    [83.09]
    """
    if table not in tables():
        raise unknown_name("published table", table, tables())
    for name in where:
        if name not in Published.__dataclass_fields__:
            raise InputError(f"Expected a field of `Published`, but got {name!r}.")
    rows = [Published(**row) for row in _content()["tables"][table]]
    return [row for row in rows if all(getattr(row, name) == value for name, value in where.items())]


def rows_for(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return published rows for the data of a bench's results, as plain dictionaries for a report.

    Of the same backbone, where the paper has it. Corrupted data gets the rows of CIFAR-10-C. `mean_here` is
    the accuracy over the targets of these results, or None; `same_backbone` whether the backbones agree.
    """
    targets = {target_of(name) for row in results["table"] for name in row["targets"]}
    backbone = _backbone(results)
    if "gaussian_noise" in targets:
        rows = published("corruptions", dataset="cifar10_c")
    else:
        data = dataset_with(targets)
        rows = [row for row in published("comparison", dataset=data) if row.method in BESIDE] if data else []
        rows = [row for row in rows if row.backbone == backbone] or rows
    return [
        row.to_dict() | {"mean_here": _accuracy_over(row, targets), "same_backbone": row.backbone == backbone}
        for row in rows
    ]


TRAINED = {
    "erm": "ERM",
    "swad": "SWAD",
    "mixstyle": "MixStyle",
    "masf": "MASF",
    "entropy": "entropy regularisation",
    "dson": "DSON",
    "l2a_ot": "L2A-OT",
    "domain_embedding": "domain-adaptive classifier",
    "single_sample": "single-sample generalization",
}
"""Published rows of training methods; the last two with their own test-time classifiers."""

ADAPTED = {
    "none": "the paper, no adaptation",
    "ebtsa": "the paper, 20 steps",
    "t3a": "T3A",
    "tent": "Tent",
    "tsd": "TSD",
}
"""Published rows of test-time methods."""


def published_beside(method: str, targets: Collection[str]) -> list[dict[str, Any]]:
    """Return the published rows of a training or test-time method for the data that has these targets.

    >>> [row["mean"] for row in published_beside("dson", ["photo", "sketch"])]
    [85.11, 86.64]
    """
    data, name = dataset_with(targets), (TRAINED | ADAPTED).get(method)
    rows = [row for table in ("comparison", "stronger") for row in published(table, dataset=data)]
    return [
        row.to_dict() | {"mean_here": _accuracy_over(row, targets)}
        for row in rows
        if data and row.method == name
    ]


def _accuracy_over(row: Published, targets: Collection[str]) -> float | None:
    mean = row.mean_over(targets)
    return mean if mean is None or row.measure == "accuracy %" else 100 - mean


def _backbone(results: dict[str, Any]) -> str:
    """Return the backbone as published rows name it; otherwise as it was given."""
    given = str(results["settings"].get("backbone") or " ".join(results["classes"]))
    return next((name for name in ("resnet18", "resnet50") if name in given), given)
