"""Will adaptation help? Ask the sources: each in turn plays the unseen domain, and the others adapt it.

A pretend target is answered by a model that was fitted without it, with and without adaptation. The walk that
is taken to the real target is the longest one that the pretend targets gain by, and what they gained is what
is promised: a little optimistic, since the walk is chosen on the same pretend targets. No target sample is
involved, labelled or not.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation import EnergyAdaptation
from sourceward.functional import AGGREGATIONS, cosine_to_sources, energy_zscore
from sourceward.functional.bootstrap import interval, paired_draws
from sourceward.functional.source_weights import Evidence, evidence, learn_source_weights, score
from sourceward.nn import Network, folded
from sourceward.settings import AdaptSettings

LENGTHS = (5, 2, 0)
"""Walks to try, the favourite first; even with 0 steps the energies weigh the votes."""

FEWEST_SOURCES = 3
"""With one of them held out there must be others to practise on."""

CAP = 0.02
"""A pretend target's gain counts up to this much and its loss in full: one easy win must not hide a loss."""

WORTH = 0.0025
"""What a walk must be worth to be taken: less than a quarter of a point is no reason to move anything."""

VIEWS_WORTH = 0.005
"""What asking about other pictures of a sample must be worth: each costs a pass of the backbone."""

ROWS = 2000
"""Samples of a pretend target that are looked at."""

Part = tuple[Tensor, Tensor]
"""Features and labels of one source."""


@dataclass(frozen=True)
class ExpectedGain:
    """The change of accuracy to expect on an unseen domain, as shares of 1."""

    gain: float
    """Mean over the pretend targets, each counted up to `CAP`, or over imagined domains, counted in full."""
    low: float
    high: float
    """95 % interval, over pretend targets and their samples."""
    per_source: dict[str, float]
    """What each source gained when it played the target, or each imagined domain; not capped."""
    unadapted: float
    """Mean accuracy of the pretend targets without adaptation."""
    num_steps: int
    adapts: bool
    """Whether adaptation is on."""
    seen: bool = False
    """Whether the features were learned on the pretend targets too: then these were hardly unseen, and the
    expected_gain tells little. Cross-fitting makes it an honest one."""

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {100 * gain:+.1f}" for name, gain in self.per_source.items())
        if self.adapts:
            text = (
                f"{100 * self.gain:+.1f} points expected (95 % interval {100 * self.low:+.1f} to "
                f"{100 * self.high:+.1f}) with {self.num_steps} steps; pretend targets: {parts}"
            )
        else:
            text = f"adaptation is off: pretend targets gained too little by it, or lost ({parts})"
        caveat = (
            ". The backbone knew the pretend targets: set `crossfit=true` for a expected_gain that it did not"
        )
        return text + (caveat if self.seen else "")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Trial:
    """One source as a pretend target: whether each sample was answered rightly by each candidate."""

    source: str
    right: np.ndarray
    """(candidates, samples) of 0 and 1; the first candidate is no adaptation."""
    votes: tuple[Evidence, ...] = ()
    """For each candidate but the first, where votes are to be learned."""

    @property
    def gain(self) -> np.ndarray:
        """Of each candidate over no adaptation."""
        accuracy = self.right.mean(1)
        return accuracy - accuracy[0]


def tune(
    parts: Sequence[Part],
    names: Sequence[str],
    fit: Callable[[list[Part]], Network],
    settings: AdaptSettings,
    watch: Callable[[int, Network], None] | None = None,
    teaches: Callable[[int, int], Part] | None = None,
) -> tuple[AdaptSettings, ExpectedGain]:
    """Choose how far to walk.

    Args:
        parts: of all sources, three or more.
        names: of the sources.
        fit: trains a network on some of them, calibrated and ready to use.
        settings: of test time, whose number of steps is to be chosen.
        watch: is shown every network, with the number of the source that it was trained without.
        teaches: what a network without one source learns of another; its part when None.
    """
    trials = []
    for held, part in enumerate(parts):
        others = [source for source in range(len(parts)) if source != held]
        network = fit([teaches(held, source) if teaches else parts[source] for source in others])
        trials.append(pretend(str(names[held]), network, part, settings))
        if watch is not None:
            watch(held, network)
    return settle(trials, settings)


def settle(trials: Sequence[Trial], settings: AdaptSettings) -> tuple[AdaptSettings, ExpectedGain]:
    """The candidate that the trials ask for, and what it promises."""
    if settings.aggregation == "learned":
        trials = [_with_votes_of(trial, [t for t in trials if t is not trial]) for trial in trials]
    best = choose(trials)
    chosen = candidates(settings)[best]
    if settings.aggregation == "learned":
        at = max(best, 1) - 1
        chosen = replace(chosen, source_weights=learn_source_weights([trial.votes[at] for trial in trials]))
    return chosen, expected_gain(trials, best, chosen)


def learn_votes(
    parts: Sequence[Part], fit: Callable[[list[Part]], Network], settings: AdaptSettings
) -> AdaptSettings:
    """Settings with the source_weights that pretend targets teach, where the number of steps is given."""
    votes = []
    for held, part in enumerate(parts):
        network = fit([other for source, other in enumerate(parts) if source != held])
        votes.append(observe(network, part, settings))
    return replace(settings, source_weights=learn_source_weights(votes))


def _with_votes_of(trial: Trial, others: Sequence[Trial]) -> Trial:
    """What a pretend target gains by votes that the *other* pretend targets taught."""
    right = [trial.right[0]]
    for at, own in enumerate(trial.votes):
        taught = learn_source_weights([other.votes[at] for other in others])
        said = AGGREGATIONS["learned"](own.probability, own.label, own.label, score(own.seen, taught))
        right.append((said.argmax(1) == own.label).double().cpu().numpy())
    return replace(trial, right=np.stack(right))


def candidates(settings: AdaptSettings) -> list[AdaptSettings]:
    """No adaptation, then every length."""
    return [settings.off(), *(replace(settings, num_steps=length) for length in LENGTHS)]


def pretend(name: str, network: Network, part: Part, settings: AdaptSettings) -> Trial:
    """Put every candidate to a source that the network was trained without."""
    scaled, label = _some(network, part)
    truth = label.cpu().numpy()
    tried = candidates(settings.untaught_votes())
    answers = [EnergyAdaptation(one)(network, scaled).probabilities for one in tried]
    right = np.stack([(answer.argmax(1) == truth).astype(float) for answer in answers])
    if settings.aggregation != "learned":
        return Trial(name, right)
    return Trial(name, right, tuple(observe(network, part, one) for one in tried[1:]))


def try_views(name: str, network: Network, voices: Sequence[Sequence[Tensor]], label: Tensor) -> Trial:
    """Two candidates: the first of the voices alone, and the mean of all.

    Args:
        name: of the domain.
        network: answers, without a walk.
        voices: rescaled features of the pictures of each voice; the first are the samples as they came.
        label: (samples,).
    """
    still = EnergyAdaptation(AdaptSettings().off())
    said = [np.mean([still(network, of).probabilities for of in pictures], axis=0) for pictures in voices]
    truth = label.cpu().numpy()
    right = [answer.argmax(1) == truth for answer in (said[0], np.mean(said, axis=0))]
    return Trial(name, np.stack(right).astype(float))


def settle_views(trials: Sequence[Trial]) -> ExpectedGain:
    """Whether to ask about those pictures from now on, and what it promises."""
    return expected_gain(trials, choose(trials, VIEWS_WORTH), AdaptSettings().off())


def observe(network: Network, part: Part, settings: AdaptSettings) -> Evidence:
    """The votes on a source that the network was trained without, and what can be seen of them."""
    scaled, label = _some(network, part)
    return seen_votes(network, scaled, label, settings)


def seen_votes(network: Network, feature: Tensor, label: Tensor, settings: AdaptSettings) -> Evidence:
    """The votes on rescaled features, as settings of test time have them cast."""
    adapted = EnergyAdaptation(settings.untaught_votes())(network, feature)
    own, device = network.own_energy, feature.device
    before, after, probability = (
        torch.from_numpy(value).to(device).transpose(0, 1)
        for value in (adapted.energy_before, adapted.energy_after, adapted.per_source)
    )
    similarity = cosine_to_sources(feature, folded(network).source_center)
    seen = evidence(probability, similarity, energy_zscore(before, own), energy_zscore(after, own))
    return Evidence(seen, probability, label)


def _some(network: Network, part: Part) -> Part:
    """Rescaled features and labels of as many samples as are looked at."""
    feature, label = part
    rows = np.random.default_rng(0).permutation(len(label))[:ROWS]
    device = network.scale.device
    return network.features(feature[rows].to(device)), label[rows].to(device)


def choose(trials: Sequence[Trial], least: float = WORTH) -> int:
    """The first candidate that pretend targets gain by, on average and at the median, or none (0)."""
    gain = np.array([np.minimum(trial.gain, CAP) for trial in trials])
    worth = np.minimum(gain.mean(0), np.median(gain, axis=0))  # one win must not speak for the others
    return next((c for c in range(1, len(worth)) if worth[c] > least), 0)


def expected_gain(
    trials: Sequence[Trial], chosen: int, settings: AdaptSettings, cap: float = CAP
) -> ExpectedGain:
    """What pretend targets gained by the chosen candidate; off promises 0 and tells what on would cost."""
    shown = chosen or 1
    gains = {trial.source: float(trial.gain[shown]) for trial in trials}
    random = np.random.default_rng(0)
    changes = [trial.right[chosen] - trial.right[0] for trial in trials]
    draws = np.minimum([paired_draws(change, random) for change in changes], cap)  # (trials, resamples)
    picked = random.integers(len(trials), size=draws.shape)  # pretend targets are drawn again, too
    low, high = interval(np.take_along_axis(draws, picked, 0).mean(0))
    return ExpectedGain(
        gain=float(np.mean([min(gain, cap) for gain in gains.values()])) if chosen else 0.0,
        low=low,
        high=high,
        per_source=gains,
        unadapted=float(np.mean([trial.right[0].mean() for trial in trials])),
        num_steps=settings.num_steps,
        adapts=bool(chosen),
    )
