"""`ExpectedGain`: the accuracy to expect on an unseen domain, and its change by adaptation."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


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
    stopped: float = 0.0
    """Share of held-out samples that were predicted with confidence and needed no copies."""
    accuracy: float | None = None
    """Mean accuracy on the held-out sources with what was chosen."""
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    """90 % interval of the accuracy on one new domain, from how the held-out sources differ."""
    accuracy_per_source: Mapping[str, float] = field(default_factory=dict)
    """Accuracy on each source when it was held out, with what was chosen."""
    tried: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Gain of every candidate on each held-out source; that of transforms is on top of the chosen steps."""

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
        return (
            f"{100 * self.gain:+.1f} points (90 % interval for a new domain: {100 * self.low:+.1f} to "
            f"{100 * self.high:+.1f}) "
            f"with {how or 'energy weights'}; held-out sources: {parts}{self._stopped()}"
        )

    def _stopped(self) -> str:
        share = f"{100 * self.stopped:.0f} % of their samples needed no copies"
        return f"; {share}" if self.stopped else ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
