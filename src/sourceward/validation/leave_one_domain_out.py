"""Leave-one-domain-out validation over the sources: choose the adaptation, and estimate its gain.

Every source in turn is held out, a model is fitted without it and predicts it with and without adaptation.
The number of Langevin steps and the transforms of test-time augmentation are chosen by what the held-out
sources gain, and that gain is what is stated: slightly optimistic, since both use the same held-out sources.
No sample of a target is involved, labelled or not.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sourceward._util.progress import progress_bar
from sourceward.adaptation.base import AdaptationResult
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.adaptation.tta import CopyResult, stop_early
from sourceward.data.transforms import parse_transforms
from sourceward.functional import AGGREGATIONS, cosine_to_sources, energy_zscore
from sourceward.functional.aggregation import Evidence, evidence, learn_source_weights, score
from sourceward.nn import Network, folded
from sourceward.settings import AdaptSettings
from sourceward.validation.cascade import KEPT_GAIN, Cascade, choose_levels, count
from sourceward.validation.expected_gain import (
    ExpectedGain,
    accuracy_interval,
    domain_interval,
    is_safe,
    standard_errors,
)
from sourceward.validation.folds import Fold, Source
from sourceward.validation.stream import Held, StreamGains, stream_gains
from sourceward.validation.trust import Judged, Trust, fit_trust

LENGTHS = (AdaptSettings.num_steps, 2, 0)
"""Numbers of steps to try, the default first; with 0 steps the energies still weight the sources."""

MIN_TTA_GAIN = 0.005
"""Least mean gain for which test-time augmentation is used: every copy costs a pass of the backbone."""


class Choice(NamedTuple):
    """What validation chose."""

    settings: AdaptSettings
    tta: str
    tta_thresholds: tuple[float, ...]
    trust: Trust | None
    stream: StreamGains | None
    expected_gain: ExpectedGain


@dataclass
class Trial:
    """A held-out source and the model that was fitted without it."""

    fold: Fold
    network: Network
    feature: Tensor
    label: np.ndarray

    @classmethod
    def of(cls, fold: Fold, fit: Callable[[Sequence[Source]], Network]) -> "Trial":
        network = fit(fold.train)
        feature = network.features(fold.feature.to(network.scale.device))
        return cls(fold, network, feature, fold.label.cpu().numpy())

    def predict(self, settings: AdaptSettings) -> AdaptationResult:
        return EnergyAdaptation(settings)(self.network, self.feature)

    def correct(self, result: AdaptationResult) -> np.ndarray:
        """(samples,) of 0 and 1."""
        return (result.probabilities.argmax(1) == self.label).astype(float)

    def evidence(self, settings: AdaptSettings) -> Evidence:
        """Predictions of each source and what can be observed about them, to learn source weights from."""
        return source_evidence(self.network, self.feature, self.fold.label, settings)

    def copies(self, settings: AdaptSettings) -> list[CopyResult]:
        """Predictions on the samples and on every copy of them."""
        found, adapter = [CopyResult(self.predict(settings), 1.0)], EnergyAdaptation(settings)
        for name, parts in self.fold.copies.items():
            for part in parts:
                feature = self.network.features(part.feature.to(self.network.scale.device))
                found.append(CopyResult(adapter(self.network, feature), part.weight, name))
        return found


def validate(
    folds: Iterable[Fold],
    fit: Callable[[Sequence[Source]], Network],
    settings: AdaptSettings,
    *,
    choose_steps: bool = True,
    tta: Sequence[str] = (),
    kept_gain: float = KEPT_GAIN,
    progress: bool | None = False,
) -> Choice:
    """Choose steps and transforms on held-out sources, and estimate the gain of the choice.

    Args:
        folds: of three or more sources.
        fit: trains a network on some sources, calibrated and ready to predict.
        settings: of test time.
        choose_steps: choose among `LENGTHS`; otherwise the settings' own number of steps is taken.
        tta: sets of transforms to choose from, each joined by +, in the order of preference.
        kept_gain: share of the gain of test-time augmentation that its cascade must keep; 0 for no cascade.
        progress: show a bar; None shows it if standard error is a terminal.
    """
    trials = _trials(folds, fit, progress)
    tried = [replace(settings, num_steps=n) for n in LENGTHS] if choose_steps else [settings]
    before = [trial.predict(settings.off()) for trial in trials]
    off = [trial.correct(result) for trial, result in zip(trials, before)]
    right = [_all_correct(trials, one) for one in tried]
    changes = {f"{one.num_steps} steps": _changes(of, off) for one, of in zip(tried, right)}
    best = choose([*changes.values()]) if choose_steps else 0
    chosen = settings.off() if best is None else tried[best]
    correct = off if best is None else right[best]
    if chosen.aggregation == "learned":
        observed = [trial.evidence(chosen) for trial in trials]
        chosen = replace(chosen, source_weights=learn_source_weights(observed))
    names, cascade, copies = "", Cascade((), ()), [trial.copies(chosen) for trial in trials]
    if tta:
        with_tta = [[t.correct(stop_early(c, one)) for t, c in zip(trials, copies)] for one in tta]
        more = {one: _changes(right_of, correct) for one, right_of in zip(tta, with_tta)}
        changes |= more
        costs = [count(copies[0], parse_transforms(one)) for one in tta]
        found = choose([*more.values()], MIN_TTA_GAIN, costs, kept_gain or 1.0)
        if found is not None:
            names = tta[found]
            if kept_gain:
                names, cascade = choose_levels(names, copies, [t.label for t in trials], kept_gain)
    final = [stop_early(c, names, cascade.thresholds) for c in copies]
    correct = [t.correct(result) for t, result in zip(trials, final)] if names else correct
    adapts, held = best is not None or bool(names), [t.fold.held_out for t in trials]
    shown = correct if adapts else right[0]
    gain = estimate(held, _changes(shown, off), off, chosen, names, adapts)
    order = {frozenset(names.split("+")): names}  # the chosen set has the order of its levels
    gains = {
        order.get(frozenset(name.split("+")), name): dict(zip(held, _means(of)))
        for name, of in changes.items()
    }
    labels = [[result.probabilities.argmax(1) for result in results] for results in (before, final)]
    changed = {name: float((a != b).mean()) for name, a, b in zip(held, *labels)}
    gain = replace(gain, stopped=cascade.stopped, tried=gains, changed=changed if adapts else {})
    trust = fit_trust([Judged(result.probabilities, t.label) for t, result in zip(trials, final)])
    streams = stream_gains(
        [Held(t.fold.held_out, t.network, r, t.label, o) for t, r, o in zip(trials, final, off)]
    )
    return Choice(chosen, names, cascade.thresholds, trust, streams, gain)


def _trials(
    folds: Iterable[Fold], fit: Callable[[Sequence[Source]], Network], progress: bool | None
) -> list[Trial]:
    """A model without each held-out source."""
    held, trials = list(folds), []
    with progress_bar(len(held), "leave-one-domain-out validation", progress) as advance:
        for fold in held:
            trials.append(Trial.of(fold, fit))
            advance(len(trials))
    return trials


def _means(changes: Sequence[np.ndarray]) -> list[float]:
    return [float(change.mean()) for change in changes]


def _all_correct(trials: Sequence[Trial], settings: AdaptSettings) -> list[np.ndarray]:
    """Correct predictions on every held-out source; source weights are learned on the *other* ones."""
    if settings.aggregation != "learned":
        return [trial.correct(trial.predict(settings)) for trial in trials]
    observed = [trial.evidence(settings) for trial in trials]
    found = []
    for place, own in enumerate(observed):
        weights = learn_source_weights([one for other, one in enumerate(observed) if other != place])
        probability = AGGREGATIONS["learned"](
            own.probability, own.label, own.label, score(own.values, weights)
        )
        found.append((probability.argmax(1).cpu().numpy() == trials[place].label).astype(float))
    return found


def _changes(right: Sequence[np.ndarray], before: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Change of each sample of each held-out source: 1 corrected, -1 made wrong, 0 neither."""
    return [after - first for after, first in zip(right, before)]


def choose(
    changes: Sequence[Sequence[np.ndarray]],
    least: float = 0.0,
    costs: Sequence[int] | None = None,
    kept: float = 1.0,
) -> int | None:
    """The first candidate that is safe for domains like the held-out sources; None without one.

    Args:
        changes: of each candidate, on each held-out source, by sample.
        least: mean gain that a candidate must exceed.
        costs: of the candidates: take the cheapest one with nearly the largest mean gain, not the first.
        kept: share of the largest mean gain that it must have.

    >>> some, more = np.repeat([1, 0], [1, 99]), np.repeat([1, 0], [2, 98])
    >>> choose([[some, -more, some], [some, some, more]])
    1
    """
    gains = [np.array([change.mean() for change in by_source]) for by_source in changes]
    good = [
        place
        for place, (gain, by_source) in enumerate(zip(gains, changes))
        if gain.mean() > least and is_safe(gain, standard_errors(list(by_source)))
    ]
    if not good:
        return None
    if costs is None:
        return good[0]
    largest = max(gains[place].mean() for place in good)
    near = [place for place in good if gains[place].mean() >= kept * largest - 1e-12]
    return min(near, key=lambda place: (costs[place], -gains[place].mean()))


def estimate(
    names: Sequence[str],
    changes: Sequence[np.ndarray],
    before: Sequence[np.ndarray],
    settings: AdaptSettings,
    tta: str,
    adapts: bool,
) -> ExpectedGain:
    """The expected gain. Where adaptation is off it is 0, and `per_source` says what adaptation would do."""
    gains, first = np.array(_means(changes)), np.array(_means(before))
    low, high = domain_interval(gains, new=True) if adapts else (0.0, 0.0)
    accuracy = first + gains if adapts else first
    accuracy_low, accuracy_high = accuracy_interval(accuracy)
    return ExpectedGain(
        gain=float(gains.mean()) if adapts else 0.0,
        low=low,
        high=high,
        per_source=dict(zip(names, map(float, gains))),
        unadapted=float(first.mean()),
        num_steps=settings.num_steps,
        adapts=adapts,
        tta=tta,
        accuracy=float(accuracy.mean()),
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
        accuracy_per_source=dict(zip(names, map(float, accuracy))),
    )


def source_evidence(network: Network, feature: Tensor, label: Tensor, settings: AdaptSettings) -> Evidence:
    """Predictions of each source on rescaled features, and what can be observed about them."""
    result = EnergyAdaptation(settings.by_energy())(network, feature)
    own, device = network.energy_quantiles, feature.device
    before, after, probability = (
        torch.from_numpy(value).to(device).transpose(0, 1)
        for value in (result.energy_before, result.energy_after, result.per_source)
    )
    similarity = cosine_to_sources(feature, folded(network).source_center)
    seen = evidence(probability, similarity, energy_zscore(before, own), energy_zscore(after, own))
    return Evidence(seen, probability, label.to(device))
