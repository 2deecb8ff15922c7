"""Which of several candidates is used: by what may be known before the target is seen, or by an oracle.

Candidates are the contestants of one adapter that differ in their options: numbers of steps, batch sizes.
No adaptation is always among those of our own. A contestant that answers some rows of a target is none: its
score would be that of other samples.
"""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from sourceward.bench.specs import NONE, OURS, Spec

SELECTIONS = {
    "source": "accuracy on validation rows of the sources",
    "leave-one-source-out": "accuracy on each source in turn, by models trained without it",
    "last": "none: the last iteration, every setting as given",
    "oracle": "ORACLE: accuracy on the target itself, an upper bound and never a result",
}


def families(specs: Sequence[Spec]) -> dict[str, list[Spec]]:
    """Adapters with several candidates.

    >>> specs = [Spec("none"), Spec("ebtsa", (("num_steps", 5),)), Spec("t3a")]
    >>> {name: [s.key for s in candidates] for name, candidates in families(specs).items()}
    {'ebtsa': ['none', 'ebtsa:num_steps=5']}
    """
    found: dict[str, list[Spec]] = {}
    for spec in specs:
        if spec.name != NONE and spec.rows is None and not spec.tuned:  # that one chooses for itself
            found.setdefault(spec.name, [Spec(NONE)] if spec.name == OURS else []).append(spec)
    return {name: candidates for name, candidates in found.items() if len(candidates) > 1}


def choose(selection: str, scores: dict[str, list[float]], candidates: Sequence[Spec]) -> Spec | None:
    """The candidate of the best mean score; of equals the first, which moves least. None without scores."""
    known = [spec for spec in candidates if scores.get(spec.key)]
    return max(known, key=lambda spec: mean(scores[spec.key])) if known else None


def label_of(family: str, selection: str, specs: Sequence[Spec] = ()) -> str:
    """Name of the selected row; that of an oracle says so first, and where contestants were no candidates,
    the name says that."""
    how = {"source": "source validation", "leave-one-source-out": "leave one source out"}
    label = (
        f"ORACLE {family}, best on the target"
        if selection == "oracle"
        else f"{family}, chosen by {how[selection]}"
    )
    some = any(spec.name == family and spec.rows is not None for spec in specs)
    return f"{label} among those without rows=" if some else label


def key_of_selected(family: str, selection: str) -> str:
    return f"oracle:{family}" if selection == "oracle" else f"selected:{family}"


def scores_of(selection: str, cell: dict[str, Any] | None, pretend: Sequence[dict[str, Any]]) -> list[float]:
    """What a selection looks at for one candidate.

    Args:
        selection: a name in `SELECTIONS`.
        cell: on the target, for the validation score it carries, or for an oracle.
        pretend: cells on sources that were left out too.
    """
    if selection == "leave-one-source-out":
        return [other["numbers"]["accuracy"] for other in pretend]
    if cell is None or selection == "last":
        return []
    score = cell["numbers"].get("validation") if selection == "source" else cell["numbers"]["accuracy"]
    return [] if score is None else [score]
