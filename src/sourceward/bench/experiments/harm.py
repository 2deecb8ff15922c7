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
from sourceward.validation.expected_gain import domain_interval, is_safe, standard_errors
from sourceward.validation.folds import Source
from sourceward.validation.leave_one_domain_out import MIN_TTA_GAIN

LOSS = 0.005
"""A target that loses more is counted."""

GUARDS = ("no guard", "most copies agree", "all copies agree", "copies more confident")
"""Per sample, without labels: where the average over copies is used; elsewhere the plain prediction is."""


class Case(NamedTuple):
    """Three sources and a target: changes by `fourier` on the held-out sources and on the target."""

    sources: tuple[str, ...]
    target: str
    held_out: list[np.ndarray]
    change: np.ndarray
    unadapted: float
    guard: str

    @property
    def gains(self) -> np.ndarray:
        return np.array([change.mean() for change in self.held_out])


def rule_before(case: Case) -> bool:
    """The rule until now: mean and median above half a point, gains capped at two points."""
    capped = np.minimum(case.gains, 0.02)
    return min(capped.mean(), float(np.median(capped))) > MIN_TTA_GAIN


def rule_now(case: Case) -> bool:
    """The rule over domains."""
    safe = is_safe(case.gains, standard_errors(case.held_out))
    return safe and case.gains.mean() > MIN_TTA_GAIN


RULES: dict[str, Callable[[Case], bool]] = {
    "always on": lambda case: True,
    "before: mean and median": rule_before,
    "now: interval over domains": rule_now,
    "ORACLE: on where the target gains": lambda case: case.change.mean() > 0,
}


def check(context: Context) -> None:
    """Refuse what is no images under a frozen backbone."""
    if not context.training.freeze or any(dataset.kind != "image" for _, dataset in context.datasets()):
        raise InputError("Expected images and --freeze for 'harm'. Name raw images, a backbone and --freeze.")


@experiment("harm", "What is switched on, and what is lost at worst.", "images, with --freeze", check)
def harm(context: Context) -> Outcome:
    tables, numbers = [], {}
    for name, dataset in context.datasets():
        for kind, domains in domains_of(context, dataset):
            found = list(cases_of(domains, context, 1 if kind in (OWN, FAR) else 3))
            for guard in GUARDS:
                cases = [case for case in found if case.guard == guard]
                title = f"{name}, {kind}, {guard}"
                numbers[title] = summary(cases)
                tables.append(_table(title, cases, numbers[title]["rules"]))
    return Outcome(tables, numbers=numbers)


def summary(cases: Sequence[Case]) -> dict[str, Any]:
    """What each rule switches on, gains, and loses; and how good the stated interval is."""
    gain = np.array([case.change.mean() for case in cases])
    rules = {}
    for name, rule in RULES.items():
        on = np.array([rule(case) for case in cases])
        got = np.where(on, gain, 0)
        rules[name] = {
            "on": float(on.mean()),
            "mean_gain": float(got.mean()),
            "worst": float(got.min()),
            "losing_more_than_half_a_point": int((got < -LOSS).sum()),
            "expected_minus_measured": _difference(cases, on),
        }
    intervals = [domain_interval(case.gains, new=True) for case in cases]
    inside = [low <= own <= high for (low, high), own in zip(intervals, gain)]
    rows = [
        {"sources": c.sources, "target": c.target, "held_out": c.gains.tolist(), "gain": float(g),
         "unadapted": c.unadapted} for c, g in zip(cases, gain)
    ]  # fmt: skip
    return {"cases": len(cases), "rules": rules, "interval_holds": float(np.mean(inside)), "rows": rows}


def _difference(cases: Sequence[Case], on: np.ndarray) -> float:
    """Mean absolute difference of expected and measured gain; both are 0 where it is off."""
    return float(np.mean([abs(c.gains.mean() - c.change.mean()) if use else 0 for c, use in zip(cases, on)]))


def _table(title: str, cases: Sequence[Case], rules: dict[str, Any]) -> Table:
    rows = [
        [
            name,
            f"{100 * n['on']:.0f}",
            *(f"{100 * n[key]:+.1f}" for key in ("mean_gain", "worst")),
            str(n["losing_more_than_half_a_point"]),
            f"{100 * n['expected_minus_measured']:.1f}",
        ]
        for name, n in rules.items()
    ]
    header = ["rule", "on, %", "mean gain", "worst", "lose over 0.5", "expected off by"]
    return Table(header, rows, f"{title}: {len(cases)} times three sources and a target; points of accuracy.")


def cases_of(domains: Domains, context: Context, every: int = 1) -> Iterator[Case]:
    """Yield three sources with every other domain as target, with and without guards.

    Args:
        domains: four or more.
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
        held_out = {h: _change(model(pairs[h]), domains, sources, h) for h in sources}
        for target in range(count):
            if target not in sources:
                changed = _change(model(sources), domains, sources, target)
                before = _right(_predict(model(sources), domains.plain[target]), domains.label[target])
                names = tuple(domains.names[s] for s in sources)
                for guard in GUARDS:
                    held = [held_out[h][guard] for h in sources]
                    there = domains.names[target]
                    yield Case(names, there, held, changed[guard], float(before.mean()), guard)


def _guards(plain: np.ndarray, copies: Sequence[np.ndarray], both: np.ndarray) -> dict[str, np.ndarray]:
    """Where each guard uses the average: always, or where most or all copies name the same class."""
    label = both.argmax(1)
    named = np.stack([copy.argmax(1) for copy in copies])
    return {
        GUARDS[0]: np.ones(len(plain), dtype=bool),
        GUARDS[1]: (named == label).mean(0) > 0.5,
        GUARDS[2]: (named == named[0]).all(0),
        GUARDS[3]: np.mean(copies, axis=0).max(1) > plain.max(1),
    }


def _change(network: Network, domains: Domains, sources: Sequence[int], target: int) -> dict[str, np.ndarray]:
    """Change of each sample of the target, by guard, by copies toward the sources of the network."""
    toward = [source for source in sources if source != target]
    plain = _predict(network, domains.plain[target])
    copies = [_predict(network, domains.mixed[target][source]) for source in toward]
    both = average([plain, *copies], [1.0, *[1 / len(copies)] * len(copies)])
    label = domains.label[target]
    change = _right(both, label) - _right(plain, label)
    used = _guards(plain.probabilities, [copy.probabilities for copy in copies], both.probabilities)
    return {name: np.where(rows, change, 0.0) for name, rows in used.items()}


def _right(result: AdaptationResult, label: Tensor) -> np.ndarray:
    return (result.probabilities.argmax(1) == label.numpy()).astype(float)


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
