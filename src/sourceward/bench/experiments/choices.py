"""What helps, by leave-one-domain-out validation: each source is held out from models trained without it.

Where a file names a held-out target, nothing is chosen by it; the same rows are reported for the record.
Choices of test time share their models; choices of training need models of their own.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.tables import Table
from sourceward.bench.experiments.base import OFF, Case, Context, Outcome, check_targets, experiment
from sourceward.bench.experiments.scores import Scores
from sourceward.bench.protocol.plan import leave_out

USUAL, LONG = 5, 50
"""Numbers of steps: of most rows, and of the chains that the distilled sampler replaces."""

TEST_TIME: dict[str, dict[str, Any]] = {
    OFF: {"num_steps": 0},
    **{f"{k} steps": {"num_steps": k, "aggregation": "energy"} for k in (2, 5, 10, 20)},
    **{
        f"{USUAL} steps, aggregation {how}": {"num_steps": USUAL, "aggregation": how}
        for how in ("mean", "cosine", "closest", "confident")
    },
}
CHAINS: dict[str, dict[str, Any]] = {
    f"{USUAL} steps, nesterov": {"num_steps": USUAL, "aggregation": "energy", "sampler": "nesterov"},
    f"{USUAL} steps, 10 draws of z": {"num_steps": USUAL, "aggregation": "energy", "num_draws": 10},
}
DISTILLED: dict[str, dict[str, Any]] = {
    f"{name}, aggregation {how}": {"num_steps": steps, "sampler": sampler, "aggregation": how}
    for how in ("mean", "energy")
    for name, steps, sampler in (
        (f"{LONG} steps", LONG, "langevin"),
        ("distilled", 1, "distilled"),
        ("distilled and 2 steps", 3, "distilled"),
    )
}
TRAINING: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no whitening": {"whiten": False},
    "KL weight 0.01, feature noise 0.5": {"kl_weight": 0.01, "train.feature_noise": 0.5},
    "KL weight 0.03": {"kl_weight": 0.03},
    "head of the paper": {"head": "prototype"},
    "learned aggregation": {"aggregation": "learned"},
    "without the last line of eq. 10": {"train.guide_weight": 0.0},
    "without feature noise": {"train.feature_noise": 0.0},
    "with posterior chains": {"train.posterior_chain": True},
    "pooled and own classifier with equal weights": {"train.pooled_weight": 1.0},
}
"""Settings of training, each compared with the defaults."""


def check(context: Context) -> None:
    """Refuse raw data."""
    if any(dataset.kind != "features" for _, dataset in context.datasets()):
        raise InputError("Expected features for 'choices', but found raw data. Name a feature file.")
    check_targets(context)


@experiment("choices", "What helps at test time, on held-out sources.", "features", check)
def choices(context: Context) -> Outcome:
    scores, targets = Scores(), Scores()
    rows = TEST_TIME if context.small else TEST_TIME | CHAINS
    for case in _held_out_sources(context, {}):
        _add(scores, case, rows)
    for case in _held_out_targets(context):
        _add(targets, case, TEST_TIME | DISTILLED)
    gains = {row: OFF for row in scores.right if row != OFF}
    tables = [_table(scores, gains, "Held-out sources", "See which choices gain.")]
    numbers, notes = {"held_out_sources": scores.numbers(gains)}, []
    if targets.right:
        gains = {row: OFF for row in targets.right if row != OFF}
        tables.append(_table(targets, gains, "Held-out targets", "Nothing was chosen by these."))
        numbers["held_out_targets"] = targets.numbers(gains)
        for how in ("mean", "energy"):
            note, numbers[f"distilled, aggregation {how}"] = _distilled(targets, how)
            notes.append(note)
    return Outcome(tables, numbers=numbers, notes=notes)


@experiment("choices-training", "What helps in training, on held-out sources.", "features", check)
def choices_training(context: Context) -> Outcome:
    scores = Scores()
    for name in list(TRAINING)[: 3 if context.small else None]:
        for case in _held_out_sources(context, TRAINING[name]):
            rows = {OFF: {"num_steps": 0}, f"{USUAL} steps": {"num_steps": USUAL}}
            _add(scores, case, {f"{name}, {how}": options for how, options in rows.items()})
    changes = {row: f"defaults, {row.rsplit(', ', 1)[1]}" for row in scores.right if "defaults" not in row}
    about = "See what the defaults gain or lose by one other choice."
    table = _table(scores, changes, "Training, held-out sources", about)
    return Outcome([table], numbers=scores.numbers(changes))


def _add(scores: Scores, case: Case, rows: dict[str, dict[str, Any]]) -> None:
    for row, options in rows.items():
        scores.add(row, case.where, case.seed, case.right_after(**{"sampler": "langevin", **options}))


def _distilled(scores: Scores, how: str) -> tuple[str, dict[str, Any]]:
    """Compare the distilled sampler with the long chains that it replaces."""
    chain, distilled = f"{LONG} steps, aggregation {how}", f"distilled, aggregation {how}"
    numbers = scores.numbers({chain: OFF, distilled: chain})
    gain, change = numbers[chain]["gain"], numbers[distilled]
    text = (
        f"Aggregation {how}: {LONG} steps gain {100 * gain:+.2f}, the distilled sampler "
        f"{100 * (gain + change['gain']):+.2f}: a difference of {100 * change['gain']:+.2f} "
        f"({100 * change['gain_low']:+.2f} to {100 * change['gain_high']:+.2f})."
    )
    difference = {key: change[key] for key in ("gain", "gain_low", "gain_high")}
    share = (gain + change["gain"]) / gain if gain > 0 else None
    return text, {"chain_gain": gain, "share_kept": share, "distilled_minus_chain": difference}


def _held_out_sources(context: Context, settings: dict[str, Any]) -> Iterator[Case]:
    """Yield every source in turn as a target, left out beside the held-out targets."""
    training = context.with_settings(**settings)
    for name, dataset in context.datasets():
        for left_out in leave_out(dataset, context.targets):
            held = left_out if dataset.targets else ()
            sources = [d for d in dataset.domain_names if d not in held]
            for seed in context.seeds:
                for target in sources if held or len(sources) > 1 else []:
                    away = tuple(sorted({*held, target}))
                    checkpoint = context.train(dataset, training, away, seed, name)
                    yield Case(name, target, seed, checkpoint, checkpoint.part(target))
            if not held:
                break  # every domain has been held out once


def _held_out_targets(context: Context) -> Iterator[Case]:
    """Yield the targets that the data holds out, with a distilled sampler trained."""
    training = context.with_settings(sampler="distilled")
    for name, dataset in context.datasets():
        for left_out, targets in leave_out(dataset, context.targets).items() if dataset.targets else ():
            for seed in context.seeds:
                checkpoint = context.train(dataset, training, left_out, seed, name)
                for target in targets:
                    yield Case(name, target, seed, checkpoint, checkpoint.part(target))


def _table(scores: Scores, against: dict[str, str], first: str, about: str) -> Table:
    """Return name, mean, difference and worst target: all held-out sources would not fit a page."""
    table = scores.table(first.lower(), against, caption=f"{first}: accuracy, %. {about}")
    rows = [[row[0], *row[-2:], _worst(scores, row[0], against.get(row[0]))] for row in table.rows]
    return replace(table, header=[table.header[0], *table.header[-2:], "worst target"], rows=rows)


def _worst(scores: Scores, row: str, baseline: str | None) -> str:
    if baseline is None:
        return ""
    other, own = scores.right[baseline], scores.right[row]
    changes = [
        np.mean([own[where][seed].mean() - other[where][seed].mean() for seed in own[where]]) for where in own
    ]
    return f"{100 * min(changes):+.1f}"
