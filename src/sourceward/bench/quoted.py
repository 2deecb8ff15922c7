"""Published numbers to stand beside measured ones: quoted, never measured here, and marked so.

Accuracy in percent unless the measure says otherwise. Selection and protocol are each paper's own, which is
why a quoted number is context and not a competitor. A number stands in the paper that is named, or in the
tables of Xiao et al. (ICLR 2023), "the paper", where `via` says so; one that could not be looked up again
says so in its `note`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sourceward._util.errors import InputError
from sourceward._util.registry import Registry

PAPER = "Xiao et al., ICLR 2023"
PACS = ("photo", "art_painting", "cartoon", "sketch")
OFFICE_HOME = ("art", "clipart", "product", "real_world")
PHEME = ("charliehebdo", "ferguson", "germanwings-crash", "ottawashooting", "sydneysiege")


@dataclass(frozen=True)
class Quoted:
    """One published number.

    Args:
        method: name, as a table shows it.
        dataset, backbone: what it was measured on.
        mean: over targets.
        source: the paper that reports it.
        per_target: where it was published.
        measure: `accuracy %`, `error %`, or what else.
        via: the paper that it was read in, where that is another one.
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
        """The mean where it can stand beside one over `targets`: as it was published where those are all of
        the data's, of what was published for each of them where they are some, None where that is not known.

        >>> row = Quoted("x", "pacs", "", 80.0, "", dict(zip(PACS, (90.0, 70.0, 85.0, 75.0))))
        >>> row.mean_over(PACS), row.mean_over(["photo", "cartoon"]), row.mean_over(["dog"])
        (80.0, 87.5, None)
        """
        if set(targets) >= set(self.per_target or _all_targets(self.dataset)):
            return self.mean
        known = [self.per_target[name] for name in targets if name in self.per_target]
        return sum(known) / len(known) if known and len(known) == len(targets) else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `quoted` is always true."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"quoted": True, **plain, "per_target": dict(self.per_target)}


def _all_targets(dataset: str) -> Collection[str]:
    """What a published mean is over; nothing where that is not known."""
    from sourceward.data.corruptions import TEST_CORRUPTIONS

    own = {"pacs": PACS, "office_home": OFFICE_HOME, "pheme": PHEME}
    return TEST_CORRUPTIONS if dataset.endswith("_c") else own.get(dataset, ())


TABLES: Registry[tuple[Quoted, ...]] = Registry("quoted table")


def quoted(table: str, **where: str) -> list[Quoted]:
    """The rows of a table, narrowed by field.

    >>> [row.mean for row in quoted("comparison", dataset="pacs", backbone="resnet18", method="Tent")]
    [83.09]
    """
    rows = TABLES[table]
    for name in where:
        if name not in Quoted.__dataclass_fields__:
            raise InputError(f"Expected a field of `Quoted`, but got {name!r}.")
    return [row for row in rows if all(getattr(row, name) == value for name, value in where.items())]


def _named(names: tuple[str, ...], values: tuple[float, ...]) -> dict[str, float]:
    return dict(zip(names, values, strict=True))


R18, R50 = "resnet18", "resnet50"

_T3A = "Iwasawa & Matsuo, NeurIPS 2021"
_L2A = "Zhou et al., ECCV 2020"
_ERM = "Gulrajani & Lopez-Paz, ICLR 2021"
_TENT = "Wang et al., ICLR 2021"
_DUBEY = "Dubey et al., CVPR 2021"
_SINGLE = "Xiao et al., ICLR 2022"
_MASF = "Dou et al., NeurIPS 2019"
_ENTROPY = "Zhao et al., NeurIPS 2020"
_DSON = "Seo et al., ECCV 2020"
_ANT = "Rusak et al., ECCV 2020"
UNCHECKED = "not checked against the paper"


def _rows(method: str, source: str, cells: Mapping[tuple[str, str], float], via: str = PAPER) -> list[Quoted]:
    return [Quoted(method, data, body, mean, source, via=via) for (data, body), mean in cells.items()]


def _means(p18: float = 0, p50: float = 0, o18: float = 0, o50: float = 0, dn: float = 0) -> dict:
    """Accuracy by data and backbone; 0 where there is none."""
    places = {
        ("pacs", R18): p18,
        ("pacs", R50): p50,
        ("office_home", R18): o18,
        ("office_home", R50): o50,
        ("domainnet", R50): dn,
    }
    return {place: mean for place, mean in places.items() if mean}


_COMPARISON = [
    *_rows("T3A", _T3A, _means(81.40, 85.10, 57.00, 68.30)),
    *_rows("L2A-OT", _L2A, _means(82.83, 84.90, 65.63, 67.66)),
    *_rows("DSON", _DSON, _means(85.11, 86.64, 62.90), via=""),
    *_rows("ERM", _ERM, _means(p50=85.50, o50=66.50, dn=40.90)),
    *_rows("Tent", _TENT, _means(83.09, 86.23, 64.13, 67.99)),
    *_rows("domain-adaptive classifier", _DUBEY, _means(p50=84.50, o50=68.90, dn=43.90)),
    *_rows("single-sample generalization", _SINGLE, _means(84.15, 87.51, 66.02, 71.07)),
    *_rows("the paper, no adaptation", PAPER, _means(83.33, 86.05, 65.01, 70.44, 42.90), via=""),
    *_rows("the paper, 10 steps", PAPER, _means(84.25, 87.05, 65.73, 71.13, 43.75), via=""),
    *_rows("the paper, 20 steps", PAPER, _means(dn=44.66), via=""),
    *_rows("the paper, 50 steps", PAPER, _means(85.10, 88.12, 66.75, 72.25, 44.98), via=""),
]


def _per_target(
    method: str, source: str, dataset: str, backbone: str, mean: float, *values: float, note: str = ""
) -> Quoted:
    names = {"pacs": PACS, "office_home": OFFICE_HOME, "pheme": PHEME}[dataset]
    return Quoted(method, dataset, backbone, mean, source, _named(names, values), note=note)


_COMPARISON += [
    _per_target("MASF", _MASF, "pacs", R18, 81.04, 94.99, 80.29, 77.17, 71.69),
    Quoted("MASF", "pacs", R50, 82.67, _MASF, note=UNCHECKED),
    Quoted("entropy regularisation", "pacs", R18, 81.38, _ENTROPY, note=UNCHECKED),
    Quoted("entropy regularisation", "pacs", R50, 85.34, _ENTROPY, note=UNCHECKED),
    _per_target("the paper, 20 steps", PAPER, "pacs", R18, 84.92, 96.05, 82.28, 81.55, 79.81),
    _per_target("the paper, 20 steps", PAPER, "pacs", R50, 87.70, 97.67, 88.00, 84.75, 80.40),
    _per_target("the paper, 20 steps", PAPER, "office_home", R18, 66.31, 60.08, 53.93, 74.50, 76.74),
    _per_target("the paper, 20 steps", PAPER, "office_home", R50, 72.07, 69.33, 58.37, 79.29, 81.26),
    _per_target("ERM", PAPER, "pheme", "distilbert", 75.1, 79.4, 77.1, 75.7, 68.2, 75.0),
    _per_target("the paper, 20 steps", PAPER, "pheme", "distilbert", 76.5, 81.8, 77.8, 75.3, 71.9, 75.6),
    Quoted("Tent", "pheme", "distilbert", 75.8, _TENT, via=PAPER),
    Quoted("single-sample generalization", "pheme", "distilbert", 76.1, _SINGLE, via=PAPER),
    Quoted("the paper, no adaptation", "pheme", "distilbert", 75.4, PAPER),
    Quoted("the paper, 10 steps", "pheme", "distilbert", 76.0, PAPER),
    Quoted("the paper, 50 steps", "pheme", "distilbert", 76.9, PAPER),
]
TABLES.register("comparison")(tuple(_COMPARISON))

TABLES.register("ablation")(
    (
        _per_target("no latent, no adaptation", PAPER, "pacs", R18, 82.49, 94.73, 78.66, 78.24, 78.34),
        _per_target("no latent, adapted", PAPER, "pacs", R18, 83.51, 94.59, 80.45, 79.98, 79.23),
        _per_target("latent, no adaptation", PAPER, "pacs", R18, 83.33, 95.12, 79.79, 79.15, 79.28),
        _per_target("latent, adapted", PAPER, "pacs", R18, 84.92, 96.05, 82.28, 81.55, 79.81),
    )
)

TABLES.register("aggregation")(
    tuple(
        Quoted(method, "pacs", R18, mean, PAPER)
        for method, mean in (("closest", 83.48), ("cosine", 84.76), ("confident", 84.41), ("mean", 84.92))
    )
)

TABLES.register("latent")(
    (
        Quoted("predict from z alone", "pacs", R18, 82.46, PAPER),
        Quoted("predict from z alone", "pacs", R50, 85.95, PAPER),
        *(
            Quoted(f"Tent on z, {count} per step", "pacs", R18, mean, PAPER)
            for count, mean in ((1, 51.60), (16, 79.81), (64, 83.77), (128, 85.02))
        ),
    )
)

TABLES.register("corruptions")(
    tuple(
        Quoted(method, data, "", error, source, measure="error %", via=via)
        for method, source, via, errors in (
            ("the paper, noise as negatives", PAPER, "", (21.5, 55.8)),
            ("the paper, other corruptions as negatives", PAPER, "", (17.0, 51.1)),
            ("Tent", _TENT, PAPER, (14.3, 44.0)),
            ("adversarial noise training", _ANT, _TENT, (None, 50.2)),
        )
        for data, error in zip(("cifar10_c", "imagenet_c"), errors)
        if error is not None
    )
)

TABLES.register("cost")(
    (
        Quoted("ERM", "pacs", R18, 6.2, PAPER, measure="hours per 10,000 iterations, V100"),
        *(
            Quoted(f"{steps} steps", "pacs", R18, hours, PAPER, measure="hours per 10,000 iterations, V100")
            for steps, hours in ((20, 7.9), (40, 9.4), (60, 10.6), (80, 12.1), (100, 14.0))
        ),
        *(
            Quoted(f"test batch, {steps} steps", "pacs", R18, seconds, PAPER, measure="seconds, V100")
            for steps, seconds in ((0, 0.05), (20, 0.15), (50, 0.30))
        ),
    )
)

_HONEST = "selected on source validation"
_BATCH = "adapts on batches of the target"

TABLES.register("stronger")(
    (
        *(
            Quoted(method, data, R50, mean, source, note=_HONEST)
            for method, source, means in (
                ("SWAD", "Cha et al., NeurIPS 2021", (88.1, 70.6, 46.5)),
                ("DiWA", "Rame et al., NeurIPS 2022", (89.0, 72.8, 47.7)),
            )
            for data, mean in zip(("pacs", "office_home", "domainnet"), means)
        ),
        Quoted("TSD", "pacs", R50, 89.3, "Wang et al., CVPR 2023", note=_BATCH),
        Quoted("REMA", "pacs", R50, 90.3, "REMA", note=_BATCH),
    )
)
