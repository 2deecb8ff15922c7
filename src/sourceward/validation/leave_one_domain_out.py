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

from sourceward.adaptation.base import AdaptationResult
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.adaptation.tta import average, stop_early
from sourceward.functional import AGGREGATIONS, cosine_to_sources, energy_zscore
from sourceward.functional.metrics import interval, paired_draws
from sourceward.functional.source_weights import Evidence, evidence, learn_source_weights, score
from sourceward.nn import Network, folded
from sourceward.settings import AdaptSettings
from sourceward.validation.cascade import KEPT_GAIN, Cascade, choose_cascade
from sourceward.validation.expected_gain import ExpectedGain
from sourceward.validation.folds import Fold, Source

LENGTHS = (AdaptSettings.num_steps, 2, 0)
"""Numbers of steps to try, the default first; with 0 steps the energies still weight the sources."""

CAP = 0.02
"""For the choice, a held-out source's gain counts up to this much and its loss in full: one easy domain must
not outweigh a loss on another."""

MIN_GAIN = 0.0025
"""Least gain for which steps are taken."""

MIN_TTA_GAIN = 0.005
"""Least gain for which test-time augmentation is used: every copy costs a pass of the backbone."""


class Choice(NamedTuple):
    """What validation chose."""

    settings: AdaptSettings
    tta: str
    expected_gain: ExpectedGain
    cascade: Cascade | None = None


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

    def with_tta(self, settings: AdaptSettings) -> Callable[..., AdaptationResult]:
        """From transforms, and the threshold of a cascade, to the average over the sample and its copies.

        Every copy is predicted once.
        """
        plain, known = self.predict(settings), {}
        adapter, device = EnergyAdaptation(settings), self.network.scale.device
        for name, parts in self.fold.copies.items():
            features = [self.network.features(part.feature.to(device)) for part in parts]
            known[name] = [(adapter(self.network, x), part.weight) for x, part in zip(features, parts)]

        def predict(names: str, threshold: float | None = None) -> AdaptationResult:
            chosen = [pair for name in names.split("+") if name for pair in known[name]]
            averaged = average([plain, *(result for result, _ in chosen)], [1.0, *(w for _, w in chosen)])
            return stop_early(plain, averaged, threshold)

        return predict


def validate(
    folds: Iterable[Fold],
    fit: Callable[[Sequence[Source]], Network],
    settings: AdaptSettings,
    *,
    choose_steps: bool = True,
    tta: Sequence[str] = (),
    kept_gain: float = KEPT_GAIN,
) -> Choice:
    """Choose steps and transforms on held-out sources, and estimate the gain of the choice.

    Args:
        folds: of three or more sources.
        fit: trains a network on some sources, calibrated and ready to predict.
        settings: of test time.
        choose_steps: choose among `LENGTHS`; otherwise the settings' own number of steps is taken.
        tta: sets of transforms to choose from, each joined by +, in the order of preference.
        kept_gain: share of the gain of test-time augmentation that its cascade must keep; 0 for no cascade.
    """
    trials = [Trial.of(fold, fit) for fold in folds]
    tried = [replace(settings, num_steps=n) for n in LENGTHS] if choose_steps else [settings]
    off = [trial.correct(trial.predict(settings.off())) for trial in trials]
    right = [_all_correct(trials, one) for one in tried]
    best = choose([_gains(right_of, off) for right_of in right]) if choose_steps else 0
    chosen = settings.off() if best is None else tried[best]
    correct = off if best is None else right[best]
    if chosen.aggregation == "learned":
        observed = [trial.evidence(chosen) for trial in trials]
        chosen = replace(chosen, source_weights=learn_source_weights(observed))
    names, cascade = "", None
    if tta:
        predict = [trial.with_tta(chosen) for trial in trials]
        with_tta = [[t.correct(p(one)) for t, p in zip(trials, predict)] for one in tta]
        found = choose([_gains(right_of, correct) for right_of in with_tta], MIN_TTA_GAIN, largest=True)
        if found is not None:
            names, correct = tta[found], with_tta[found]
            plain = [p("") for p in predict]
            sure, before = [p.probabilities.max(1) for p in plain], list(map(Trial.correct, trials, plain))
            cascade = choose_cascade(sure, before, correct, kept_gain) if kept_gain else None
            threshold = None if cascade is None else cascade.threshold
            correct = [t.correct(p(names, threshold)) for t, p in zip(trials, predict)]
    adapts = best is not None or bool(names)
    shown = correct if adapts else right[0]
    gain = estimate([t.fold.held_out for t in trials], shown, off, chosen, names, adapts)
    stopped = 0.0 if cascade is None else cascade.stopped
    return Choice(chosen, names, replace(gain, stopped=stopped), cascade)


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


def _gains(right: Sequence[np.ndarray], before: Sequence[np.ndarray]) -> np.ndarray:
    """Gain of accuracy on each held-out source."""
    return np.array([after.mean() - first.mean() for after, first in zip(right, before)])


def choose(gains: Sequence[np.ndarray], least: float = MIN_GAIN, largest: bool = False) -> int | None:
    """The first candidate that held-out sources gain by, on average and at the median; None without one.

    Args:
        gains: of each candidate, on each held-out source.
        least: gain that a candidate must exceed.
        largest: take the one with the largest gain, rather than the first that exceeds `least`.

    >>> choose([np.array([0.01, -0.02, 0.0]), np.array([0.01, 0.01, 0.005])])
    1
    """
    capped = [np.minimum(gain, CAP) for gain in gains]
    worth = [min(gain.mean(), np.median(gain)) for gain in capped]
    good = [place for place, value in enumerate(worth) if value > least]
    if not good:
        return None
    return max(good, key=lambda place: (worth[place], gains[place].mean())) if largest else good[0]


def estimate(
    names: Sequence[str],
    right: Sequence[np.ndarray],
    before: Sequence[np.ndarray],
    settings: AdaptSettings,
    tta: str,
    adapts: bool,
) -> ExpectedGain:
    """The expected gain. Where adaptation is off it is 0, and `per_source` says what adaptation would do."""
    gains = _gains(right, before)
    random = np.random.default_rng(0)
    changes = [after - first for after, first in zip(right, before)]
    draws = np.array([paired_draws(change, random) for change in changes])  # (sources, resamples)
    picked = random.integers(len(names), size=draws.shape)  # held-out sources are resampled, too
    low, high = interval(np.take_along_axis(draws, picked, 0).mean(0)) if adapts else (0.0, 0.0)
    return ExpectedGain(
        gain=float(gains.mean()) if adapts else 0.0,
        low=float(low),
        high=float(high),
        per_source=dict(zip(names, map(float, gains))),
        unadapted=float(np.mean([first.mean() for first in before])),
        num_steps=settings.num_steps,
        adapts=adapts,
        tta=tta,
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
