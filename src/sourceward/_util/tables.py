"""Tables of text for reports and terminals, and how the numbers in them are written."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

GLUE = "\u00a0"
"""A space that keeps both sides on one line of a page."""


@dataclass(frozen=True)
class Table:
    """Rows of text under a header. Row numbers in `strong` are bold, those in `groups` are headings."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    strong: Sequence[int] = ()
    groups: Sequence[int] = ()


def mean_text(numbers: dict[str, Any] | None, glue: str = " ") -> str:
    """Return mean and standard deviation in per cent; a dash without numbers.

    >>> mean_text({"mean": 0.5, "std": 0.011}), mean_text({"mean": 0.5, "std": None}), mean_text(None)
    ('50.0 ± 1.1', '50.0', '-')
    """
    if numbers is None:
        return "-"
    std = "" if numbers.get("std") is None else f"{glue}±{glue}{100 * numbers['std']:.1f}"
    return f"{100 * numbers['mean']:.1f}{std}"


def gain_text(numbers: dict[str, Any], glue: str = " ") -> str:
    """Return the gain in points with its interval; nothing for the row that gains refer to.

    >>> gain_text({"gain": 0.02, "gain_low": -0.01, "gain_high": 0.05})
    '+2.0 (-1.0 to +5.0)'
    """
    if "gain" not in numbers or numbers.get("method") == "none":
        return ""
    low, mid, high = (100 * numbers[key] for key in ("gain_low", "gain", "gain_high"))
    return f"{mid:+.1f} ({low:+.1f}{glue}to{glue}{high:+.1f})"


def requirements(row: dict[str, Any]) -> str:
    """Return what a method needs at deployment, from its `traits`."""
    words = {"changes_weights": "weight updates", "keeps_state": "state", "needs_batch": "a batch"}
    return ", ".join(word for flag, word in words.items() if row.get("traits", {}).get(flag)) or "-"


def ms_text(row: dict[str, Any]) -> str:
    """Return milliseconds per sample."""
    value = row.get("ms_per_sample")
    return "-" if value is None else f"{value:.2f}"


def target_of(name: str) -> str:
    """Return the target of DATA/TARGET."""
    return name.split("/", 1)[1]


def target_names(rows: Iterable[dict[str, Any]]) -> set[str]:
    """Return the targets that any row of results has."""
    return {name for row in rows for name in row["targets"]}


def some_targets(row: dict[str, Any] | None, every: Collection[str]) -> str:
    """Return how many targets a row has, '' where it has all: a mean over some of them is of another thing.

    >>> row = {"targets": {"a/x": {}}}
    >>> some_targets(row, ["a/x", "a/y"]), some_targets(row, ["a/x"])
    (' (1 target)', '')
    """
    if row is None or len(row["targets"]) == len(every):
        return ""
    count = len(row["targets"])
    return f" ({count} target{'s' * (count != 1)})"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Map each DATA/TARGET to the target alone, where only one dataset has it.

    >>> short_names(["a/x", "a/y", "b/y"])
    {'a/x': 'x', 'a/y': 'a/y', 'b/y': 'b/y'}
    """
    targets = {name: target_of(name) for name in names}
    times = Counter(targets.values())
    return {name: target if times[target] == 1 else name for name, target in targets.items()}


def not_covered(estimated: str, used: str) -> str:
    """Return a sentence where a model uses other transforms than its estimates are for; '' where they agree.

    >>> not_covered("", "hflip+crop")
    'The estimates are without TTA; this model uses hflip+crop, which validation did not choose.'
    >>> not_covered("fourier", ""), not_covered("fourier", "fourier")
    ('The estimates are with fourier; this model uses no TTA.', '')
    """
    if estimated == used:
        return ""
    with_ = f"with {estimated}" if estimated else "without TTA"
    uses = f"{used}, which validation did not choose" if used else "no TTA"
    return f"The estimates are {with_}; this model uses {uses}."
