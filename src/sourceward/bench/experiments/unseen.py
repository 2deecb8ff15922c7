"""Models as users get them, on unseen domains: expected gain, trust, abstention, streams in several orders.

Everything is chosen on held-out sources; target labels only measure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sourceward._util.tables import Table
from sourceward.adaptation import create_adapter
from sourceward.adaptation.base import AdaptationResult, select_rows
from sourceward.bench.experiments.base import Case, Context, Outcome, experiment
from sourceward.bench.protocol.measures import separation
from sourceward.bench.protocol.plan import leave_out
from sourceward.functional.calibration import calibration_gap, risk_coverage
from sourceward.validation.stream import run_stream

COVERAGE = 0.8
ONE_CLASS = 400
"""Samples of a stream of one class, at most."""


@experiment("unseen", "Expected gain, trust, abstention and streams on unseen domains.")
def unseen(context: Context) -> Outcome:
    rows = {f"{case.where}, seed {case.seed}": measure(case) for case in _tuned(context)}
    return Outcome(
        [_trust_table(rows), _stream_table(rows)],
        numbers={"targets": rows, "mean": _means(rows)},
        notes=["One class: the mean change over streams that hold one class each, and the worst of them."],
    )


def _tuned(context: Context) -> Iterator[Case]:
    """Yield every (data, target, seed) with what validation chose."""
    training = replace(context.training, tune=True)
    for name, dataset in context.datasets():
        for left_out, targets in leave_out(dataset, context.targets).items():
            for seed in context.seeds:
                checkpoint = context.train(dataset, training, left_out, seed, name)
                for target in targets:
                    yield Case(name, target, seed, checkpoint, checkpoint.part(target))


def measure(case: Case) -> dict[str, Any]:
    """Return all numbers of one target."""
    plain, result = case.checkpoint.adapt(case.part, num_steps=0), case.checkpoint.adapt(case.part)
    before, right = case.right(plain.probabilities), case.right(result.probabilities)
    model, gain = case.checkpoint.model, case.checkpoint.info["expected_gain"] or {}
    numbers: dict[str, Any] = {
        "unadapted": float(before.mean()),
        "gain": float(right.mean() - before.mean()),
        "expected_gain": gain.get("gain"),
        "expected_interval": [gain.get("low"), gain.get("high")],
        "tta": model.tta,
        **trust_numbers(case, result, right),
    }
    return numbers | {"streams": stream_numbers(case, result, before)}


def trust_numbers(case: Case, result: AdaptationResult, right: np.ndarray) -> dict[str, Any]:
    """Return how signals separate right from wrong, calibration, and what abstention buys."""
    signals = {
        "confidence": result.probabilities.max(1),
        "agreement": result.agreement,
        "energy": -result.energy_before.mean(1),
        "trust": result.trust,
        "trust + agreement": result.trust + result.agreement,
    }
    risk = risk_coverage(result.trust, right, [1.0, COVERAGE])
    fitted = case.checkpoint.model.adapter.trust_
    answered = result.trust >= (0.0 if fitted is None else fitted.threshold(COVERAGE))
    return {
        "auroc": {name: separation(values, right)["auroc"] for name, values in signals.items()},
        "calibration_error": {
            name: calibration_gap(signals[name], right) for name in ("confidence", "trust")
        },
        "temperature": None if fitted is None else fitted.temperature,
        "error": {"100 %": risk[1.0], "80 %": risk[COVERAGE]},
        "answered_at_the_threshold": float(answered.mean()),
        "error_of_answers": float(1 - right[answered].mean()) if answered.any() else None,
    }


def stream_numbers(case: Case, result: AdaptationResult, before: np.ndarray) -> dict[str, Any]:
    """Return the change of accuracy by state, against no adaptation, in several orders."""
    network, label = case.checkpoint.network, case.part.label
    shuffled = np.random.default_rng(case.seed).permutation(len(label))
    orders = {"shuffled": shuffled, "sorted": shuffled[np.argsort(label[shuffled], kind="stable")]}

    def change(found: AdaptationResult, order: np.ndarray) -> float:
        codes = case.checkpoint.codes[found.probabilities.argmax(1)]
        return float((codes == label[order]).mean() - before[order].mean())

    def t3a(order: np.ndarray) -> AdaptationResult:
        return create_adapter("t3a")(
            network, case.part.feature[torch.from_numpy(order).to(network.scale.device)]
        )

    def stream(order: np.ndarray, together: bool = False) -> AdaptationResult:
        return run_stream(network, select_rows(result, order), together=together)

    classes = [shuffled[label[shuffled] == code][:ONE_CLASS] for code in np.unique(label)]
    numbers: dict[str, Any] = {"batch": change(stream(shuffled, True), shuffled)}
    for name, run in {"t3a": t3a, "stream": stream}.items():
        numbers |= {f"{name}, {how}": change(run(order), order) for how, order in orders.items()}
        one = [change(run(order), order) for order in classes]
        numbers |= {f"{name}, one class": float(np.mean(one)), f"{name}, one class, worst": min(one)}
    gains = case.checkpoint.model.adapter.stream_
    numbers["expected"] = None if gains is None else {"stream": gains.stream.gain, "batch": gains.batch.gain}
    return numbers


def _means(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the mean over targets and seeds of every number."""

    def mean(values: Sequence[Any]) -> Any:
        known = [value for value in values if value is not None]
        if known and isinstance(known[0], dict):
            return {key: mean([value[key] for value in known]) for key in known[0]}
        return float(np.mean(known)) if known and isinstance(known[0], int | float) else None

    return mean(list(rows.values()))


def _trust_table(rows: dict[str, dict[str, Any]]) -> Table:
    header = [
        "target",
        "no adaptation",
        "gain",
        "expected",
        "AUROC: confidence",
        "agreement",
        "energy",
        "trust",
    ]
    header += ["calibration error: confidence", "trust", "error", "at 80 % coverage"]
    lines = []
    for name, n in {**rows, "mean": _means(rows)}.items():
        auroc = [n["auroc"][key] for key in ("confidence", "agreement", "energy", "trust")]
        shares = [*n["calibration_error"].values(), *n["error"].values()]
        gains = [n["gain"], n["expected_gain"]]
        lines.append(
            [name, _percent(n["unadapted"]), *("-" if g is None else f"{100 * g:+.1f}" for g in gains)]
            + ["-" if value is None else f"{value:.3f}" for value in auroc]
            + [_percent(value) for value in shares]
        )
    return Table(header, lines, "Trust on unseen domains; its temperature is fitted on held-out sources.")


def _stream_table(rows: dict[str, dict[str, Any]]) -> Table:
    names = [name for name in next(iter(rows.values()))["streams"] if name != "expected"]
    lines = []
    for where, n in {**rows, "mean": _means(rows)}.items():
        expected = (n["streams"]["expected"] or {}).get("stream")
        cells = [expected, *(n["streams"][name] for name in names)]
        lines.append([where, *("-" if cell is None else f"{100 * cell:+.1f}" for cell in cells)])
    caption = "Change of accuracy by state, against no adaptation, in points."
    return Table(["target", "stream, expected", *names], lines, caption)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
