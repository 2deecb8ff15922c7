"""`ExpectedGain`: the accuracy to expect on an unseen domain, and its change by adaptation, with intervals.

The held-out sources are the sample, three to five of them, and not their rows. How far gains differ between
domains cannot be known from so few, so the variance has a prior: a scaled inverse chi-squared distribution,
fitted by maximum likelihood to the gains on held-out sources of every data set in `results/`
(`results/domains/results.json`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sourceward._util.values import Each, Optional, Whole

SCHEMA = {
    **dict.fromkeys(("gain", "low", "high", "unadapted"), float),
    **dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high"), Optional(float)),
    "per_source": Each(float),
    "num_steps": Whole(),
    "adapts": bool,
    "tta": Optional(str),
    "stopped": Optional([float]),
    "accuracy_per_source": Optional(Each(float)),
    "tried": Optional(Each(Each(float))),
    "changed": Optional(Each(float)),
}
"""Of an `ExpectedGain` in a file."""


@dataclass(frozen=True)
class ExpectedGain:
    """Gain of accuracy by adaptation, estimated by leave-one-domain-out validation; shares of 1."""

    gain: float
    """Mean over the held-out sources."""
    low: float
    high: float
    """90 % interval of the gain on one new domain, from how the gains on the held-out sources differ."""
    per_source: dict[str, float]
    """Gain on each source when it was held out."""
    unadapted: float
    """Mean accuracy on the held-out sources without adaptation."""
    num_steps: int
    """Langevin steps that were chosen."""
    adapts: bool
    """Whether adaptation is on."""
    tta: str = ""
    """Transforms of test-time augmentation that were chosen."""
    stopped: Sequence[float] = ()
    """Shares of held-out samples that were predicted with confidence, and needed no copies or no more than
    those of the first transform."""
    accuracy: float | None = None
    """Mean accuracy on the held-out sources with what was chosen."""
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    """90 % interval of the accuracy on one new domain, from how the held-out sources differ."""
    accuracy_per_source: Mapping[str, float] = field(default_factory=dict)
    """Accuracy on each source when it was held out, with what was chosen."""
    tried: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Gain of every candidate on each held-out source; that of transforms is on top of the chosen steps."""
    changed: Mapping[str, float] = field(default_factory=dict)
    """Share of the labels of each held-out source that what was chosen changes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stopped", tuple(self.stopped))  # a file has lists

    @property
    def accuracy_text(self) -> str:
        """The expected accuracy in words, with its interval and the held-out sources."""
        if self.accuracy is None or self.accuracy_low is None or self.accuracy_high is None:
            return "not estimated"
        parts = ", ".join(f"{name} {100 * value:.1f}" for name, value in self.accuracy_per_source.items())
        return (
            f"{100 * self.accuracy:.1f} % (90 % interval for a new domain: {100 * self.accuracy_low:.0f} to "
            f"{100 * self.accuracy_high:.0f} %; held-out sources: {parts})"
        )

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {100 * gain:+.1f}" for name, gain in self.per_source.items())
        if not self.adapts:
            return f"adaptation is off: no safe gain on held-out sources ({parts})"
        how = " and ".join(
            part for part in (f"{self.num_steps} steps" * bool(self.num_steps), self.tta) if part
        )
        low, high = domain_interval(np.array([*self.per_source.values()]))
        return (
            f"{100 * self.gain:+.1f} points on average over such domains (90 % interval {100 * low:+.1f} to "
            f"{100 * high:+.1f}), {100 * self.low:+.1f} to {100 * self.high:+.1f} on one new domain, "
            f"with {how or 'energy weights'}; held-out sources: {parts}{self._stopped()}"
        )

    def on(self, before: np.ndarray, after: np.ndarray) -> dict[str, float] | None:
        """The gain on a domain of which unlabeled samples are known: the gain per changed label on held-out
        sources, times the share of labels that adaptation changes here. See `gain_of_changes`.

        Args:
            before: predicted labels without adaptation, (n,).
            after: predicted labels with it, (n,).

        Returns:
            `gain`, `low` and `high` (a 90 % interval), the share `changed`; None where it is not estimated.
        """
        if not self.adapts or not any(self.changed.values()) or not len(before):
            return None
        held = np.array([[self.per_source[name], share] for name, share in self.changed.items()])
        share = float(np.mean(np.asarray(before) != np.asarray(after)))
        gain, low, high = gain_of_changes(held[:, 0], held[:, 1], share, len(before))
        return {"gain": gain, "low": low, "high": high, "changed": share}

    def _stopped(self) -> str:
        return f"; {stopped_text(self.stopped, self.tta, 'of their samples')}" if self.stopped else ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"stopped": list(self.stopped)}


def stopped_text(shares: Sequence[float], tta: str, whose: str) -> str:
    """Return how many samples stopped at each level of a cascade.

    >>> stopped_text((0.7, 0.1), "hflip+crop", "of the samples")
    '70 % of the samples needed no copies, 10 % those of hflip alone'
    """
    none = f"{100 * shares[0]:.0f} % {whose} needed no copies"
    more = (f"{100 * share:.0f} % those of {tta.split('+')[0]} alone" for share in shares[1:])
    return ", ".join([none, *more])


PRIOR_DOF, PRIOR_SD = 2.0, 0.007
"""Of the standard deviation of gains between domains: degrees of freedom, and scale in shares of 1."""

ACCURACY_PRIOR = (2.0, 0.12)
"""The same for accuracies, which differ between domains far more than gains do: a weak prior, whose scale is
about the median over the benches in `results/` (`results/domains/results.json`)."""

CHANGE_PRIOR = (2.0, 0.15)
"""The same for the gain per changed label. Chosen on digits and clothes, shifted and rotated, under a frozen
backbone; `results/harm` has how often the interval holds."""

LEVEL = 0.9
"""Of the intervals: one in twenty lies below, one in twenty above."""

MIN_CHANGED = 0.01
"""Below this share of changed labels, the gain per changed label is noise."""

NOISE = 1.645
"""A held-out source loses where its gain is more than this many standard errors below 0."""


def domain_interval(
    gains: np.ndarray,
    *,
    new: bool = False,
    level: float = LEVEL,
    prior: tuple[float, float] = (PRIOR_DOF, PRIOR_SD),
) -> tuple[float, float]:
    """Interval of the mean gain over domains like the held-out sources.

    Args:
        gains: on each held-out source.
        new: of the gain on one more domain, rather than of the mean.
        level: probability that the interval holds it.
        prior: degrees of freedom and scale of the standard deviation between domains.

    >>> low, high = domain_interval(np.array([0.018, 0.006, 0.013]))
    >>> round(100 * low, 1), round(100 * high, 1)
    (0.4, 2.0)
    """
    from scipy.stats import t

    count, (prior_dof, prior_sd) = len(gains), prior
    dof = prior_dof + count - 1
    spread = float(np.var(gains, ddof=1)) * (count - 1) if count > 1 else 0.0
    variance = (prior_dof * prior_sd**2 + spread) / dof
    half = t.ppf(0.5 + level / 2, dof) * np.sqrt(variance * (1 / count + new))
    return float(gains.mean() - half), float(gains.mean() + half)


def accuracy_interval(accuracies: np.ndarray) -> tuple[float, float]:
    """Interval of the accuracy on one new domain, from 0 to 1, given that on each held-out source.

    >>> low, high = accuracy_interval(np.array([0.66, 0.73, 0.80]))
    >>> round(100 * low), round(100 * high)
    (49, 97)
    """
    low, high = domain_interval(accuracies, new=True, prior=ACCURACY_PRIOR)
    return max(low, 0.0), min(high, 1.0)


def gain_of_changes(
    gains: np.ndarray, changed: np.ndarray, share: float, rows: int
) -> tuple[float, float, float]:
    """Gain on a domain where adaptation changes this share of the labels, and its 90 % interval.

    A gain is the share of labels that change times the gain per changed label. The first is known without
    labels; the second is that of the held-out sources together, and differs between domains.

    Args:
        gains: on each held-out source.
        changed: share of the labels of each that change; not all 0.
        share: of the labels that change on the new domain.
        rows: of the new domain, for the noise of its gain.

    >>> found = gain_of_changes(np.array([0.06, 0.02]), np.array([0.2, 0.1]), 0.3, 1000)
    >>> [round(100 * value, 1) for value in found]
    [8.0, -3.5, 19.5]
    """
    each = gains / np.maximum(changed, MIN_CHANGED)
    low, high = domain_interval(each, new=True, prior=CHANGE_PRIOR)
    half = np.hypot((high - low) / 2 * share, NOISE * np.sqrt(share / rows))
    gain = float(gains.sum() / changed.sum()) * share
    return gain, float(max(gain - half, -share)), float(min(gain + half, share))


def standard_errors(changes: list[np.ndarray]) -> np.ndarray:
    """Standard error of each held-out source's gain, from the changes (-1, 0 or 1) of its samples."""
    return np.array([np.sqrt(change.var() / max(len(change) - 1, 1)) for change in changes])


def is_safe(gains: np.ndarray, errors: np.ndarray) -> bool:
    """Whether the interval of the mean gain is above 0 and no held-out source loses more than its noise.

    >>> is_safe(np.array([0.01, 0.02, 0.015]), np.full(3, 0.003))
    True
    >>> is_safe(np.array([0.04, 0.05, -0.01]), np.full(3, 0.003))
    False
    """
    return domain_interval(gains)[0] > 0 and bool((gains >= -NOISE * errors).all())
