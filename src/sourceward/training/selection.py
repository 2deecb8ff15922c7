"""Which iterate of a training is kept. After every validation a rule decides whether the present weights
replace those kept so far: no more than one set is ever kept."""

import math
from collections.abc import Mapping
from typing import Any

SELECT = {
    "best": "the best on source validation, of equals the later",
    "late": "the latest that is within one standard error of the best on source validation",
    "last": "the last, whatever source validation says",
}


def takes_over(scores: dict[str, Any], kept: Mapping[str, Any], rule: str, on: str = "accuracy") -> bool:
    """Whether the weights behind `scores` are kept in place of those behind `kept`, which may be empty.

    `late` is for averages of many iterates: near its ceiling source validation tells them apart by luck
    alone, and the longer average is the safer bet. It writes `peak`, the best validation so far, to `scores`.
    One set of weights is enough for it: the threshold rises only with a validation that exceeds it.

    Args:
        scores: `on` and, for `late`, `per_source`: `on` and the number of `samples` of each source.
        kept: scores of the weights kept so far.
        rule: a name in `SELECT`.
        on: the score to look at, a mean over sources.

    >>> looks = [0.90, 0.97, 0.96, 0.93]
    >>> kept = {}
    >>> for iteration, accuracy in enumerate(looks):
    ...     each = {name: {"accuracy": accuracy, "samples": 100} for name in "ab"}
    ...     scores = {"accuracy": accuracy, "per_source": each, "iteration": iteration}
    ...     if takes_over(scores, kept, "late"):
    ...         kept = scores
    >>> kept["iteration"], kept["peak"]["iteration"], round(kept["peak"]["standard_error"], 3)
    (2, 1, 0.015)
    """
    if rule == "last":
        return True
    if rule == "best":
        return scores[on] >= kept.get(on, -math.inf)
    peak = kept.get("peak")
    if peak is None or scores[on] >= peak[on]:
        peak = {on: scores[on], "standard_error": standard_error(scores["per_source"], on)}
        peak["iteration"] = scores["iteration"]
    scores["peak"] = peak
    return scores[on] >= peak[on] - peak["standard_error"]


def standard_error(per_source: Mapping[str, Mapping[str, Any]], on: str = "accuracy") -> float:
    """Of a mean over sources of shares of right answers: binomial in each source, with two right and two
    wrong answers added (Agresti and Coull, 1998), so that a perfect score is not taken for a sure one.

    >>> look = {"a": {"accuracy": 0.9, "samples": 100}, "b": {"accuracy": 1.0, "samples": 9}}
    >>> round(standard_error(look), 3)
    0.062
    """
    variances = []
    for source in per_source.values():
        share = (source[on] * source["samples"] + 2) / (source["samples"] + 4)
        variances.append(share * (1 - share) / source["samples"])
    return math.sqrt(sum(variances)) / len(variances)
