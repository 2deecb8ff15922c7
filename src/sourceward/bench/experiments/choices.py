"""What helps, asked of the sources: each plays the unseen domain for models that were trained without it.

Where a file names a held-out domain, nothing is chosen by it; the same choices are put to it for the record.
Choices of test time are put to the same models; choices of training need models of their own.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.adaptation import EnergyAdaptation
from sourceward.bench.experiments.base import Asked, Context, Outcome, check_targets, experiment
from sourceward.bench.experiments.scores import Scores
from sourceward.bench.experiments.walks import Walk, walk_all
from sourceward.bench.protocol import leave_out
from sourceward.functional.source_weights import learn_source_weights
from sourceward.validation.leave_one_domain_out import LENGTHS

OFF = "no adaptation"
STEPS = LENGTHS[0]
FAR = 50
LEAP = "distilled"

VOTES: dict[str, dict[str, Any]] = {
    **{f"{k} steps": {"steps": k} for k in (0, 2, 5, 10, 20)},
    **{f"{STEPS} steps, vote {how}": {"how": how} for how in ("mean", "cosine", "closest", "confident")},
    f"{STEPS} steps, the least surprised source alone": {"top": 1},
    f"{STEPS} steps, the two least surprised sources": {"top": 2},
    f"{STEPS} steps, half the unmoved answer": {"blend": 0.5},
}
"""Lengths and votes; by energy where nothing else is said. One walk answers all of them."""

LEARNED = f"{STEPS} steps, vote learned"

WALKS: dict[str, dict[str, Any]] = {
    f"{STEPS} steps, stop at the source's 90 % quantile": {"stop": 0.9},
    f"{STEPS} steps, nesterov": {"sampler": "nesterov"},
    f"{STEPS} steps, 10 draws of z": {"num_draws": 10},
}
"""Walks of their own."""

CLASS = "z of the best class"

TRAINING: dict[str, dict[str, Any]] = {
    "features as they come": {"whiten": False},
    "KL weight 0.01, feature noise 0.5": {"kl": 0.01, "feature_noise": 0.5},
    "denoising score matching": {"objective": "dsm"},
    "denoising score matching alone": {"objective": "dsm", "guide": 0.0},
    "KL weight 0.03": {"kl": 0.03},
    "head of the paper": {"head": "prototype"},
    "without the last line of eq. 10": {"guide": 0.0},
    "without feature noise": {"feature_noise": 0.0},
    "with posterior chains": {"posterior_chain": True},
    "pooled classifier as heavy as the own": {"pooled": 1.0},
}
"""Against the defaults."""


def check(context: Context) -> None:
    if any(dataset.kind != "features" for _, dataset in context.datasets()):
        raise InputError("Expected features for 'choices', but found raw data. Name a feature file.")
    check_targets(context)


@experiment(
    "choices", "What helps at test time: asked of pretend targets, one source at a time.", "features", check
)
def choices(context: Context) -> Outcome:
    scores, source_weights = Scores(), {}
    for group in _groups(context):
        walks = [_walk(asked, (0, 2, 5, 10, 20)) for asked in group]
        votes = [walk.taught(STEPS, _numbers(asked)) for walk, asked in zip(walks, group)]
        held, seed = group[0].checkpoint.left_out, group[0].seed
        for number, (asked, walk) in enumerate(zip(group, walks)):
            others = votes[:number] + votes[number + 1 :]
            taught = learn_source_weights(others) if others else None
            _ask(scores, asked, walk, taught, () if context.small else tuple(WALKS))
        key = (group[0].name, tuple(sorted(set(held) - {group[0].target})), seed)
        source_weights[key] = learn_source_weights(votes)
    gains = {row: OFF for row in scores.right if row != OFF}
    tables = [_table(scores, gains, "Pretend targets", "See what gains, and what votes by energy do alone.")]
    numbers = {"pretend": scores.numbers(gains)}
    notes = []
    real = _held_out(context, source_weights)
    if real.right:
        beside = {row: OFF for row in real.right if row != OFF}
        tables.append(
            _table(real, beside, "Held-out targets", "For the record: nothing was chosen by these.")
        )
        numbers["held_out"] = real.numbers(beside)
        for how in ("mean", "energy"):
            note, told = _kept(real, how)
            notes.append(note)
            numbers[f"distilled, vote {how}"] = told
    numbers["source_weights"] = {" ".join(map(str, key)): value for key, value in source_weights.items()}
    return Outcome(tables, numbers=numbers, notes=notes)


@experiment("choices-training", "What helps in training: asked of pretend targets.", "features", check)
def choices_training(context: Context) -> Outcome:
    scores = Scores()
    variants: dict[str, dict[str, Any]] = {"defaults": {}} | TRAINING
    if context.small:
        variants = dict(list(variants.items())[:3])
    for name, settings in variants.items():
        for asked in _pretend(context, settings):
            walk = _walk(asked, (0, STEPS))
            for how, answer in ((OFF, walk.vote(0, "mean")), (f"{STEPS} steps", walk.vote(STEPS))):
                scores.add(f"{name}, {how}", asked.place, asked.seed, _right(asked, answer))
    changes = {row: f"defaults, {row.rsplit(', ', 1)[1]}" for row in scores.right if "defaults" not in row}
    about = "See what the defaults lose or gain when one choice is another."
    return Outcome(
        [_table(scores, changes, "Training, pretend targets", about)], numbers=scores.numbers(changes)
    )


def _ask(
    scores: Scores, asked: Asked, walk: Walk, taught: tuple[float, ...] | None, own: tuple[str, ...]
) -> None:
    """Put every choice of test time to one target."""

    def add(row: str, answer: Tensor) -> None:
        scores.add(row, asked.place, asked.seed, _right(asked, answer))

    add(OFF, walk.vote(0, "mean"))
    for row, options in VOTES.items():
        add(row, walk.vote(**{"steps": STEPS, **options}))
    if taught is not None:
        add(LEARNED, walk.vote(STEPS, "learned", source_weights=taught))
    there = _walk(asked, (STEPS, 20), latent="class")
    for steps in (STEPS, 20):
        add(f"{steps} steps, {CLASS}", there.vote(steps, before=walk.surprises[0]))
    for row in own:
        settings = replace(asked.checkpoint.settings, num_steps=STEPS, aggregation="energy", **WALKS[row])
        said = EnergyAdaptation(settings)(asked.checkpoint.network, asked.part.feature).probabilities
        add(row, torch.from_numpy(said))


def _held_out(context: Context, source_weights: dict[Any, tuple[float, ...]]) -> Scores:
    """The same choices where a file names its target, and the distilled beside the chain it was distilled from."""
    scores = Scores()
    for name, dataset in context.datasets():
        for left_out, targets in leave_out(dataset, context.targets).items() if dataset.targets else ():
            training = replace(
                context.training, settings={**context.training.settings, "sampler": LEAP}, tune=False
            )
            for seed in context.seeds:
                checkpoint = context.train(dataset, training, left_out, seed, name)
                for target in targets:
                    asked = Asked(name, target, seed, checkpoint, checkpoint.part(target))
                    walk = _walk(asked, (0, 2, 5, 10, 20, FAR))
                    _ask(scores, asked, walk, source_weights.get((name, left_out, seed)), ())
                    distilled = _walk(asked, (1, 3), sampler=LEAP)
                    for how in ("mean", "energy"):
                        for row, answer in (
                            (f"{FAR} steps, vote {how}", walk.vote(FAR, how)),
                            (f"distilled, vote {how}", distilled.vote(1, how)),
                            (f"distilled and 2 steps, vote {how}", distilled.vote(3, how)),
                        ):
                            scores.add(row, asked.place, seed, _right(asked, answer))
    return scores


def _kept(scores: Scores, how: str) -> tuple[str, dict[str, Any]]:
    """What the distilled keeps of the long chain's gain."""
    chain, distilled = f"{FAR} steps, vote {how}", f"distilled, vote {how}"
    numbers = scores.numbers({chain: OFF, distilled: chain})
    gained, change = numbers[chain]["gain"], numbers[distilled]
    share = (gained + change["gain"]) / gained if gained > 0 else None
    text = (
        f"Votes {how}: {FAR} steps gain {100 * gained:+.2f}, the distilled "
        f"{100 * (gained + change['gain']):+.2f}: a difference of {100 * change['gain']:+.2f} "
        f"({100 * change['gain_low']:+.2f} to {100 * change['gain_high']:+.2f})."
    )
    told = {key: change[key] for key in ("gain", "gain_low", "gain_high")}
    return text, {"chain_gain": gained, "share_kept": share, "leap_minus_chain": told}


def _groups(context: Context) -> Iterator[list[Asked]]:
    """Pretend targets whose models share data, held-out target and seed."""
    group: list[Asked] = []
    key: Any = None
    for asked in _pretend(context, {}):
        held = tuple(name for name in asked.checkpoint.left_out if name != asked.target)
        if group and (asked.name, held, asked.seed) != key:
            yield group
            group = []
        key = (asked.name, held, asked.seed)
        group.append(asked)
    if group:
        yield group


def _pretend(context: Context, settings: dict[str, Any]) -> Iterator[Asked]:
    """Every source in turn as a target, beside whatever is held out anyway."""
    training = replace(context.training, settings={**context.training.settings, **settings}, tune=False)
    for name, dataset in context.datasets():
        for left_out in leave_out(dataset, context.targets):
            held = left_out if dataset.targets else ()
            sources = [d for d in dataset.domain_names if d not in held]
            for seed in context.seeds:
                for target in sources if held or len(sources) > 1 else []:
                    away = tuple(sorted({*held, target}))
                    checkpoint = context.train(dataset, training, away, seed, name)
                    yield Asked(name, target, seed, checkpoint, checkpoint.part(target))
            if not held:
                break  # every domain has been a pretend target once


def _walk(asked: Asked, lengths: tuple[int, ...], **options: Any) -> Walk:
    settings = replace(asked.checkpoint.settings, **{"sampler": "langevin", **options})
    return walk_all(asked.checkpoint.network, asked.part.feature, settings, lengths)


def _numbers(asked: Asked) -> Tensor:
    """Labels in the network's numbering."""
    return torch.from_numpy(asked.checkpoint.numbers(asked.part.label)).to(asked.part.feature.device)


def _right(asked: Asked, answer: Tensor) -> np.ndarray:
    """Whether each sample is answered rightly."""
    return asked.checkpoint.codes[answer.argmax(1).cpu().numpy()] == asked.part.label


def _table(scores: Scores, against: dict[str, str], first: str, about: str) -> Any:
    """Name, mean, difference and the worst target: a dozen pretend targets would not fit a page."""
    table = scores.table(first.lower(), against, caption=f"{first}: accuracy, %. {about}")
    numbers = scores.numbers(against)
    rows = [[row[0], *row[-2:], _worst(scores, row[0], numbers[row[0]])] for row in table.rows]
    return replace(table, header=[table.header[0], *table.header[-2:], "worst target"], rows=rows)


def _worst(scores: Scores, row: str, numbers: dict[str, Any]) -> str:
    if "against" not in numbers:
        return ""
    other, own = scores.right[numbers["against"]], scores.right[row]
    changes = [
        np.mean([own[place][seed].mean() - other[place][seed].mean() for seed in own[place]]) for place in own
    ]
    return f"{100 * min(changes):+.1f}"
