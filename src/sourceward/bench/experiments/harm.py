"""What the decision over domains switches on, what is lost at worst, and what caution costs.

Every three domains are the sources, every other domain is a target, and `fourier` is the candidate of a
frozen backbone. Beside the data's own domains there are shifts that are built to break the rule: domains far
apart, one odd source among three, few rows, unequal classes. Models of two sources are shared by triples.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward._util.tables import Table
from sourceward.adaptation.base import AdaptationResult
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.adaptation.tta import average
from sourceward.bench.experiments.base import Context, Outcome, experiment
from sourceward.bench.experiments.harm_domains import FAR, OWN, Domains, domains_of
from sourceward.estimator import EnergyAdapter
from sourceward.estimator.network import fit_network
from sourceward.nn import Network
from sourceward.settings import AdaptSettings
from sourceward.validation.expected_gain import (
    MIN_CHANGED,
    domain_interval,
    gain_of_changes,
    is_safe,
    standard_errors,
)
from sourceward.validation.folds import Source
from sourceward.validation.leave_one_domain_out import MIN_TTA_GAIN

LOSS = 0.005
"""A target that loses more is counted."""

EVERY = {OWN: 1, FAR: 3}
"""Every so many of all threes of domains are sources; every ninth where rows are few or classes unequal."""

GUARDS = ("no guard", "most copies agree", "all copies agree", "copies more confident", "half weight")
"""Per sample, without labels: where the average over copies is used, elsewhere the plain prediction is; or
the average in which all copies together weigh half as much as the image."""


class Changes(NamedTuple):
    """What `fourier` does to each sample of a domain."""

    correct: np.ndarray
    """1 corrected, -1 made wrong, 0 neither."""
    label: np.ndarray
    """Whether the label is another one."""


class Case(NamedTuple):
    """Three sources and a target: changes by `fourier` on the held-out sources and on the target."""

    sources: tuple[str, ...]
    target: str
    held_out: list[Changes]
    there: Changes
    unadapted: float
    guard: str

    @property
    def gains(self) -> np.ndarray:
        return np.array([own.correct.mean() for own in self.held_out])

    @property
    def changed(self) -> np.ndarray:
        return np.array([own.label.mean() for own in self.held_out])

    @property
    def gain(self) -> float:
        return float(self.there.correct.mean())

    @property
    def estimated(self) -> tuple[float, float, float]:
        """The gain on the target and its interval, from its unlabeled samples."""
        share, rows = float(self.there.label.mean()), len(self.there.label)
        return gain_of_changes(self.gains, np.maximum(self.changed, 1e-9), share, rows)


def rule_before(case: Case) -> bool:
    """The rule until now: mean and median above half a point, gains capped at two points."""
    capped = np.minimum(case.gains, 0.02)
    return min(capped.mean(), float(np.median(capped))) > MIN_TTA_GAIN


def rule_now(case: Case) -> bool:
    """The rule over domains."""
    safe = is_safe(case.gains, standard_errors([own.correct for own in case.held_out]))
    return safe and case.gains.mean() > MIN_TTA_GAIN


def rule_cautious(case: Case) -> bool:
    """The rule over domains, and the gain per changed label on *one new domain* is above 0, too."""
    each = case.gains / np.maximum(case.changed, MIN_CHANGED)
    return rule_now(case) and domain_interval(each, new=True, prior=(2.0, 0.05))[0] > 0


RULES: dict[str, Callable[[Case], bool]] = {
    "always on": lambda case: True,
    "before: mean and median": rule_before,
    "now: interval over domains": rule_now,
    "interval of one new domain": rule_cautious,
    "ORACLE: on where the target gains": lambda case: case.gain > 0,
}


def check(context: Context) -> None:
    """Refuse what is no images under a frozen backbone."""
    if not context.training.freeze or any(dataset.kind != "image" for _, dataset in context.datasets()):
        raise InputError("Expected images and --freeze for 'harm'. Name raw images, a backbone and --freeze.")


@experiment("harm", "What is switched on, and what is lost at worst.", "images, with --freeze", check)
def harm(context: Context) -> Outcome:
    tables, numbers = [], {}
    for name, dataset in context.datasets():
        for kind, domains, tested in domains_of(context, dataset):
            found = list(cases_of(domains, tested, context, EVERY.get(kind, 9)))
            for guard in GUARDS:
                cases = [case for case in found if case.guard == guard]
                title = f"{name}, {kind}, {guard}"
                numbers[title] = summary(cases)
                tables.append(_table(title, cases, numbers[title]["rules"]))
    return Outcome(tables, numbers=numbers)


def summary(cases: Sequence[Case]) -> dict[str, Any]:
    """What each rule switches on, gains, and loses; and how good the stated gains and intervals are."""
    gain = np.array([case.gain for case in cases])
    errors = standard_errors([case.there.correct for case in cases])
    likely = shrunken(gain, errors)
    rules = {}
    for name, rule in RULES.items():
        on = np.array([rule(case) for case in cases])
        got = np.where(on, gain, 0)
        rules[name] = {
            "on": float(on.mean()),
            "mean_gain": float(got.mean()),
            "worst": float(got.min()),
            "worst_shrunken": float(np.where(on, likely, 0).min()),
            "losing_more_than_half_a_point": int((got < -LOSS).sum()),
            "of_these_significant": significant_losses(gain[on], errors[on]),
            "expected_minus_measured": _difference([case.gains.mean() for case in cases], gain, on),
            "estimated_minus_measured": _difference([case.estimated[0] for case in cases], gain, on),
        }
    stated = [domain_interval(case.gains, new=True) for case in cases]
    here = [case.estimated[1:] for case in cases]
    rows = [
        {"sources": c.sources, "target": c.target, "held_out": c.gains.tolist(), "gain": c.gain,
         "standard_error": float(e), "changed": float(c.there.label.mean()), "estimated": c.estimated,
         "held_out_changed": c.changed.tolist(), "unadapted": c.unadapted} for c, e in zip(cases, errors)
    ]  # fmt: skip
    return {
        "cases": len(cases),
        "rules": rules,
        "standard_error": float(errors.mean()),
        "interval_holds": _holds(stated, gain),
        "estimated_interval_holds": _holds(here, gain),
        "rows": rows,
    }


def shrunken(gain: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Posterior means of gains that scatter about their mean and have noise: the smallest of many noisy
    gains is too small by chance.

    >>> shrunken(np.array([-0.04, 0.0, 0.04]), np.full(3, 0.02)).round(3)
    array([-0.025,  0.   ,  0.025])
    """
    between = max(float(gain.var() - np.mean(errors**2)), 1e-8)
    weight = between / (between + errors**2)
    return gain.mean() + weight * (gain - gain.mean())


def significant_losses(gain: np.ndarray, errors: np.ndarray, level: float = 0.05) -> int:
    """How many targets lose more than `LOSS` beyond chance, by Holm's procedure over all of them.

    >>> significant_losses(np.array([-0.05, -0.02, 0.01]), np.array([0.01, 0.01, 0.01]))
    1
    """
    from scipy.stats import norm

    chance = np.sort(norm.cdf((gain + LOSS) / np.maximum(errors, 1e-6)))
    above = np.flatnonzero(chance > level / np.arange(len(chance), 0, -1))
    return int(above[0]) if len(above) else len(chance)


def _holds(intervals: Sequence[tuple[float, ...]], gain: np.ndarray) -> float:
    return float(np.mean([low <= own <= high for (low, high), own in zip(intervals, gain)]))


def _difference(stated: Sequence[float], gain: np.ndarray, on: np.ndarray) -> float:
    """Mean absolute difference of stated and measured gain; both are 0 where it is off."""
    return float(np.mean(np.where(on, np.abs(np.array(stated) - gain), 0)))


def _table(title: str, cases: Sequence[Case], rules: dict[str, Any]) -> Table:
    rows = [
        [
            name,
            f"{100 * n['on']:.0f}",
            *(f"{100 * n[key]:+.1f}" for key in ("mean_gain", "worst", "worst_shrunken")),
            *(str(n[key]) for key in ("losing_more_than_half_a_point", "of_these_significant")),
            *(f"{100 * n[key]:.1f}" for key in ("expected_minus_measured", "estimated_minus_measured")),
        ]
        for name, n in rules.items()
    ]
    header = ["rule", "on, %", "mean gain", "worst", "worst, less noise", "lose over 0.5", "significant"]
    header += ["expected off by", "from unlabeled rows"]
    return Table(header, rows, f"{title}: {len(cases)} times three sources and a target; points of accuracy.")


def cases_of(domains: Domains, tested: Domains, context: Context, every: int = 1) -> Iterator[Case]:
    """Yield three sources with every other domain as target, with and without guards.

    Args:
        domains: four or more, as sources.
        tested: the same, as targets.
        context: of the experiment.
        every: take every so many of all threes.
    """
    known: dict[tuple[int, ...], Network] = {}

    def model(sources: tuple[int, ...]) -> Network:
        if sources not in known:
            known[sources] = _fit(domains, sources, context)
        return known[sources]

    count = len(domains.names)
    for number, sources in enumerate(combinations(range(count), 3)):
        if number % every:
            continue
        pairs = {h: tuple(s for s in sources if s != h) for h in sources}
        held_out = [_changes(model(pairs[h]), domains, pairs[h], h) for h in sources]
        for target in range(count):
            if target not in sources:
                there = _changes(model(sources), tested, sources, target)
                before = _predict(model(sources), tested.plain[target]).probabilities.argmax(1)
                unadapted = float((before == tested.label[target].numpy()).mean())
                names = tuple(domains.names[s] for s in sources)
                for guard in GUARDS:
                    held = [own[guard] for own in held_out]
                    yield Case(names, domains.names[target], held, there[guard], unadapted, guard)


def _answers(plain: AdaptationResult, copies: Sequence[AdaptationResult]) -> dict[str, np.ndarray]:
    """Labels by each guard; the copies weigh as much as the image, or half as much."""
    both, half = (
        average([plain, *copies], [1.0, *[total / len(copies)] * len(copies)]).probabilities.argmax(1)
        for total in (1.0, 0.5)
    )
    alone, p = plain.probabilities.argmax(1), np.stack([copy.probabilities for copy in copies])
    named = p.argmax(2)
    used = {
        GUARDS[0]: np.ones(len(alone), dtype=bool),
        GUARDS[1]: (named == both).mean(0) > 0.5,
        GUARDS[2]: (named == named[0]).all(0),
        GUARDS[3]: p.mean(0).max(1) > plain.probabilities.max(1),
    }
    return {name: np.where(rows, both, alone) for name, rows in used.items()} | {GUARDS[4]: half}


def _changes(network: Network, domains: Domains, sources: Sequence[int], target: int) -> dict[str, Changes]:
    """Changes of each sample of the target, by guard, by copies toward the sources of the network."""
    plain = _predict(network, domains.plain[target])
    copies = [_predict(network, domains.mixed[target][source]) for source in sources]
    before, label = plain.probabilities.argmax(1), domains.label[target].numpy()
    return {
        guard: Changes((after == label).astype(float) - (before == label), after != before)
        for guard, after in _answers(plain, copies).items()
    }


def _predict(network: Network, raw: Tensor) -> AdaptationResult:
    return EnergyAdaptation(AdaptSettings().off())(network, network.features(raw))


def _fit(domains: Domains, sources: tuple[int, ...], context: Context) -> Network:
    """Heads as `fit --freeze` trains them; the energies are not used, and get one short chain."""
    parts = []
    for place, own in enumerate(sources):
        others = [*sources[place + 1 :], *sources[:place]]
        rows = torch.arange(len(domains.label[own]))
        copies = torch.stack([domains.mixed[own][o] for o in others])[rows % len(others), rows]
        parts.append(Source(domains.plain[own], domains.label[own], copies, rows))
    estimator = EnergyAdapter(
        max_iter=30 if context.small else 100,
        batch_size=64,
        train={"chains": 1, "num_steps": 1, "supervised_steps": 1},
        random_state=context.seeds[0],
        verbose=False,
    )
    estimator.start(sources, np.arange(domains.classes), domains.plain[0].shape[1])
    return fit_network(estimator, parts)
