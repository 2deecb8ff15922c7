"""What an adapter with state is expected to gain, on held-out sources in three orders."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from sourceward._util.values import Each
from sourceward.adaptation.base import AdaptationResult, select_rows
from sourceward.adaptation.stream import run_stream
from sourceward.functional.calibration import fit_temperature
from sourceward.nn import Network
from sourceward.validation.expected_gain import domain_interval

ALLOW = ("sample", "stream", "batch")
"""What a deployment permits: each sample by itself, samples in order with a state, all samples at once."""


class Held(NamedTuple):
    """One held-out source: predictions without state, labels, and which are right without adaptation."""

    name: str
    network: Network
    result: AdaptationResult
    label: np.ndarray
    unadapted: np.ndarray


_GAIN = {"gain": float, "low": float, "high": float, "per_source": Each(float)}
SCHEMA = {"temperature": float, "stream": _GAIN, "sorted": _GAIN, "batch": _GAIN}
"""Of `StreamGains` in a file."""


@dataclass(frozen=True)
class Gain:
    """Gain against no adaptation on an unseen domain; shares of 1."""

    gain: float
    low: float
    high: float
    """90 % interval for one new domain."""
    per_source: dict[str, float]

    def __str__(self) -> str:
        low, gain, high = (100 * value for value in (self.low, self.gain, self.high))
        parts = ", ".join(f"{name} {100 * own:+.1f}" for name, own in self.per_source.items())
        return f"{gain:+.1f} points ({low:+.1f} to {high:+.1f}); held-out sources: {parts}"


@dataclass(frozen=True)
class StreamGains:
    """What `stream` and `batch` are expected to gain, and the temperature of a stream's trust."""

    temperature: float
    stream: Gain
    """In random order."""
    sorted: Gain
    """In the order of the classes, the worst for a state."""
    batch: Gain
    """All samples at once."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "StreamGains":
        gains = {name: Gain(**given[name]) for name in ("stream", "sorted", "batch")}
        return cls(given["temperature"], **gains)


def stream_gains(held: Sequence[Held]) -> StreamGains:
    """Run a stream over each held-out source: in random order, by class, and all at once."""
    found: dict[str, dict[str, float]] = {"stream": {}, "sorted": {}, "batch": {}}
    temperatures = []
    for one in held:
        shuffled = np.random.default_rng(0).permutation(len(one.label))
        orders = {"stream": shuffled, "sorted": shuffled[np.argsort(one.label[shuffled], kind="stable")]}
        for how in found:
            order = orders.get(how, shuffled)
            result = run_stream(one.network, select_rows(one.result, order), together=how == "batch")
            right = result.probabilities.argmax(1) == one.label[order]
            found[how][one.name] = float(right.mean() - one.unadapted.mean())
            if how == "stream":
                temperatures.append(fit_temperature(result.probabilities, one.label[order]))
    gains = {how: _gain(by_source) for how, by_source in found.items()}
    return StreamGains(float(np.exp(np.log(temperatures).mean())), **gains)


def _gain(by_source: dict[str, float]) -> Gain:
    gains = np.array(list(by_source.values()))
    return Gain(float(gains.mean()), *domain_interval(gains, new=True), by_source)
