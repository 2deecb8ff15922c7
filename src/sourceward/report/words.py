"""How tables say it: a mean and its spread, a gain and its interval, a target, what an adapter asks for."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

GLUE = "\u00a0"
"""Between what stays on one line of a page."""


def spread(numbers: dict[str, Any] | None, glue: str = " ") -> str:
    """In per cent; a dash where there is nothing.

    >>> spread({"mean": 0.5, "std": 0.011}), spread({"mean": 0.5, "std": None}), spread(None)
    ('50.0 ± 1.1', '50.0', '-')
    """
    if numbers is None:
        return "-"
    std = "" if numbers.get("std") is None else f"{glue}±{glue}{100 * numbers['std']:.1f}"
    return f"{100 * numbers['mean']:.1f}{std}"


def gain(numbers: dict[str, Any], glue: str = " ") -> str:
    """In points, with its interval; nothing for the row that gains are over.

    >>> gain({"gain": 0.02, "gain_low": -0.01, "gain_high": 0.05})
    '+2.0 (-1.0 to +5.0)'
    """
    if "gain" not in numbers or numbers.get("adapter") == "none":
        return ""
    low, mid, high = (100 * numbers[key] for key in ("gain_low", "gain", "gain_high"))
    return f"{mid:+.1f} ({low:+.1f}{glue}to{glue}{high:+.1f})"


def asks_for(row: dict[str, Any]) -> str:
    """What an adapter costs a deployment."""
    words = {"changes_weights": "weights", "keeps_state": "state", "needs_batch": "a batch"}
    return ", ".join(word for flag, word in words.items() if row.get("traits", {}).get(flag)) or "-"


def cost(row: dict[str, Any]) -> str:
    """Milliseconds a sample."""
    value = row.get("ms_per_sample")
    return "-" if value is None else f"{value:.2f}"


def target_of(place: str) -> str:
    """Of DATA/TARGET."""
    return place.split("/", 1)[1]


def short_names(places: Iterable[str]) -> dict[str, str]:
    """Places by the names that a table has for them: the target's, where it is of one data alone.

    >>> short_names(["a/x", "a/y", "b/y"])
    {'a/x': 'x', 'a/y': 'a/y', 'b/y': 'b/y'}
    """
    targets = {place: target_of(place) for place in places}
    times = Counter(targets.values())
    return {place: target if times[target] == 1 else place for place, target in targets.items()}
