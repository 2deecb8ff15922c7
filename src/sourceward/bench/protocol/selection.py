"""Choose among several settings of one method: by the sources alone, or by an oracle.

Candidates are methods of one adapter that differ in their options: numbers of steps, batch sizes. No
adaptation is always a candidate of `ebtsa`. A method that is evaluated on some rows of a target is none: its
score would be that of other samples.
"""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from sourceward.bench.protocol.methods import EBTSA, NONE, Method

SELECTIONS = {
    "source": "accuracy on validation rows of the sources",
    "leave-one-source-out": "accuracy on each source in turn, by models trained without it",
    "last": "none: the last iteration, every setting as given",
    "oracle": "ORACLE: accuracy on the target itself, an upper bound and never a result",
}
CHOSEN_BY = {"source": "source validation", "leave-one-source-out": "leave-one-source-out validation"}


def families(methods: Sequence[Method]) -> dict[str, list[Method]]:
    """Return the candidates of each adapter that has several.

    >>> methods = [Method("none"), Method("ebtsa", (("num_steps", 5),)), Method("t3a")]
    >>> {name: [m.key for m in candidates] for name, candidates in families(methods).items()}
    {'ebtsa': ['none', 'ebtsa:num_steps=5']}
    """
    found: dict[str, list[Method]] = {}
    for method in methods:
        if method.name != NONE and method.max_rows is None and not method.auto:  # auto chooses by itself
            found.setdefault(method.name, [Method(NONE)] if method.name == EBTSA else []).append(method)
    return {name: candidates for name, candidates in found.items() if len(candidates) > 1}


def choose(scores: dict[str, list[float]], candidates: Sequence[Method]) -> Method | None:
    """Return the candidate with the best mean score; of equals the first. None without scores."""
    known = [method for method in candidates if scores.get(method.key)]
    return max(known, key=lambda method: mean(scores[method.key])) if known else None


def selected_label(family: str, selection: str, methods: Sequence[Method] = ()) -> str:
    """Return the label of the selected row; an oracle's begins with ORACLE."""
    label = (
        f"ORACLE {family}, best on the target"
        if selection == "oracle"
        else f"{family}, chosen by {CHOSEN_BY[selection]}"
    )
    some = any(method.name == family and method.max_rows is not None for method in methods)
    return f"{label} among those without rows=" if some else label


def selected_key(family: str, selection: str) -> str:
    """Return the key of the selected row."""
    return f"oracle:{family}" if selection == "oracle" else f"selected:{family}"


def scores_of(selection: str, run: dict[str, Any] | None, held_out: Sequence[dict[str, Any]]) -> list[float]:
    """Return the scores by which a selection judges one candidate.

    Args:
        selection: a name in `SELECTIONS`.
        run: on the target, for its validation score, or for an oracle.
        held_out: runs on sources that were left out as well.
    """
    if selection == "leave-one-source-out":
        return [other["numbers"]["accuracy"] for other in held_out]
    if run is None or selection == "last":
        return []
    score = run["numbers"].get("validation") if selection == "source" else run["numbers"]["accuracy"]
    return [] if score is None else [score]
