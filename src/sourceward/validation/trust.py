"""Trust fitted on held-out sources: a temperature, thresholds of abstention, and how well they did.

On a domain that it was not trained on, a model is right more or less often than it states. Here each held-out
source has a temperature of its own, of a model that was fitted without it, and the geometric mean over the
held-out sources is the one for unseen domains: domains are the sample, not rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.values import Each
from sourceward.functional.calibration import calibration_gap, fit_temperature, risk_coverage, trust

COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Shares of the samples that are answered, for the curve of risk against coverage."""

LEVELS = np.linspace(0, 1, 101)


class Judged(NamedTuple):
    """Predictions on one held-out source, and its labels."""

    probability: np.ndarray
    """(n, classes)."""
    label: np.ndarray

    @property
    def right(self) -> np.ndarray:
        return self.probability.argmax(1) == self.label


SCHEMA = {
    "temperature": float,
    "quantiles": [float],
    "error": Each(float),
    "calibration_error": [float],
}
"""Of a `Trust` in a file."""


@dataclass(frozen=True)
class Trust:
    """How trust is computed, and how it did on held-out sources that it was not fitted on."""

    temperature: float
    quantiles: tuple[float, ...]
    """Of trust on the held-out sources, at 0, 1, ..., 100 %; each source has the same weight."""
    error: Mapping[str, float]
    """Error among the most trusted share of the samples, by coverage; mean over the held-out sources."""
    calibration_error: tuple[float, float]
    """Gap between stated and actual shares of right labels: of the confidence, of trust."""

    def threshold(self, coverage: float) -> float:
        """The trust below which to abstain so that this share of the held-out samples is answered."""
        if not 0 < coverage <= 1:
            raise InputError(f"Expected `coverage` to be above 0 and at most 1, but got {coverage!r}.")
        return float(np.interp(1 - coverage, LEVELS, self.quantiles)) if coverage < 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Trust":
        if len(given["quantiles"]) != len(LEVELS) or len(given["calibration_error"]) != 2:
            raise ValueError("its trust has another number of quantiles")
        pairs = {name: tuple(given[name]) for name in ("quantiles", "calibration_error")}
        return cls(given["temperature"], error=dict(given["error"]), **pairs)


def fit_trust(judged: Sequence[Judged]) -> Trust:
    """Fit trust on held-out sources; its errors are with the temperature of the other held-out sources."""
    logs = np.log([fit_temperature(*one) for one in judged])
    others = [np.exp(np.delete(logs, place).mean()) for place in range(len(logs))]
    stated = [trust(one.probability, t) for one, t in zip(judged, others)]
    curves = [risk_coverage(value, one.right, COVERAGES) for value, one in zip(stated, judged)]
    gaps = [
        (calibration_gap(one.probability.max(1), one.right), calibration_gap(value, one.right))
        for value, one in zip(stated, judged)
    ]
    temperature = float(np.exp(logs.mean()))
    return Trust(
        temperature,
        _quantiles([trust(one.probability, temperature) for one in judged]),
        {f"{share:g}": float(np.mean([curve[share] for curve in curves])) for share in COVERAGES},
        tuple(map(float, np.mean(gaps, axis=0))),  # type: ignore[arg-type]
    )


def _quantiles(values: Sequence[np.ndarray]) -> tuple[float, ...]:
    """At `LEVELS`, of samples that have the same weight for each held-out source."""
    share = np.concatenate([np.full(len(own), 1 / len(own)) for own in values])
    flat = np.concatenate(values).astype(np.float64)
    order = np.argsort(flat, kind="stable")
    return tuple(map(float, np.interp(LEVELS, np.cumsum(share[order]) / share.sum(), flat[order])))
