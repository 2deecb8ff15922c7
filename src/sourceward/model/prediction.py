"""`Prediction`: the prediction for one input, with its details."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sourceward.adaptation.base import AdaptationResult


@dataclass(frozen=True)
class Prediction:
    """The prediction for one input, with its details."""

    label: str
    probability: float
    source_labels: dict[str, str]
    """The label that each source predicts."""
    energy_before: dict[str, float]
    energy_after: dict[str, float]
    status: str
    """A name in `adaptation.STATUS_TEXT`."""
    agreement: float
    """Share of the predictions of copies and sources that are the label."""
    trust: float
    """Estimated probability that the label is right."""
    probabilities: dict[str, float] | None = None
    """Of every class, on request."""


def explain(
    result: AdaptationResult, classes: Sequence[str], sources: Sequence[str], probabilities: bool = False
) -> list[Prediction]:
    """One `Prediction` for each row of a result, with the probabilities of all classes on request."""
    best, of_source = result.probabilities.argmax(1), result.per_source.argmax(2)

    def named(values: np.ndarray) -> dict[str, float]:
        return {name: float(value) for name, value in zip(sources, values)}

    return [
        Prediction(
            classes[best[row]],
            float(result.probabilities[row, best[row]]),
            {name: classes[label] for name, label in zip(sources, of_source[row])},
            named(result.energy_before[row]),
            named(result.energy_after[row]),
            str(result.status[row]),
            float(result.agreement[row]),
            float(result.trust[row]),
            dict(zip(classes, map(float, result.probabilities[row]))) if probabilities else None,
        )
        for row in range(len(result))
    ]
