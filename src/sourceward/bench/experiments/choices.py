"""What helps, asked of the sources: each plays the unseen domain for models that were trained without it.

No held-out domain is looked at: where a file names one, it is left out as well. Choices of test time are put
to the same models; choices of training need models of their own.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sourceward.adapters import EnergyAdaptation
from sourceward.bench.experiments.base import Asked, Context, Outcome, experiment, leave_out
from sourceward.bench.experiments.scores import Scores
from sourceward.errors import InputError
from sourceward.tuning import LENGTHS

OFF = "no adaptation"
STEPS = LENGTHS[0]

TEST_TIME: dict[str, dict[str, Any]] = {
    **{f"{k} steps": {"num_steps": k} for k in (0, 2, 5, 10, 20)},
    **{
        f"{STEPS} steps, vote {how}": {"aggregation": how}
        for how in ("mean", "cosine", "closest", "confident")
    },
    f"{STEPS} steps, stop at the source's 90 % quantile": {"stop": 0.9},
    f"{STEPS} steps, half the unmoved answer": {"blend": 0.5},
    f"{STEPS} steps, nesterov": {"sampler": "nesterov"},
    f"{STEPS} steps, 10 draws of z": {"num_draws": 10},
}
"""Against no adaptation; sources vote by energy where nothing else is said."""

TRAINING: dict[str, dict[str, Any]] = {
    "KL weight 0.03": {"kl": 0.03},
    "head of the paper": {"head": "prototype"},
    "without the last line of eq. 10": {"guide": 0.0},
    "without feature noise": {"feature_noise": 0.0},
    "with posterior chains": {"posterior_chain": True},
    "pooled classifier as heavy as the own": {"pooled": 1.0},
}
"""Against the defaults."""


@experiment("choices", "What helps: every choice asked of pretend targets, one source at a time.", "features")
def choices(context: Context) -> Outcome:
    tests = Scores()
    for asked in _pretend(context, {}):
        for name, options in ({OFF: None} | TEST_TIME).items():
            tests.add(name, asked.place, asked.seed, _right(asked, options))
    trained = Scores()
    variants: dict[str, dict[str, Any]] = {"defaults": {}} | ({} if context.small else TRAINING)
    for name, settings in variants.items():
        for asked in _pretend(context, settings):
            for how, options in ((OFF, None), ("adapted", {})):
                trained.add(f"{name}, {how}", asked.place, asked.seed, _right(asked, options))
    gains = dict.fromkeys(TEST_TIME, OFF)
    changes = {row: f"defaults, {row.rsplit(', ', 1)[1]}" for row in trained.right if "defaults" not in row}
    captions = (
        "Test time: accuracy on pretend targets, %. See what gains, and what votes by energy do alone "
        "(0 steps).",
        f"Training: accuracy on pretend targets, %, without adaptation and with {STEPS} steps. See what the "
        "defaults lose when one choice is undone.",
    )
    return Outcome(
        [
            _without_places(tests.table("test time", gains, caption=captions[0])),
            _without_places(trained.table("training", changes, caption=captions[1])),
        ],
        numbers={"test_time": tests.numbers(gains), "training": trained.numbers(changes)},
    )


def _pretend(context: Context, settings: dict[str, Any]) -> Iterator[Asked]:
    """Every source in turn as a target, beside whatever is held out anyway."""
    training = replace(context.training, settings={**context.training.settings, **settings}, tune=False)
    for name, dataset in context.datasets():
        if dataset.kind != "features":
            raise InputError("Expected features for 'choices', but found raw data. Name a feature file.")
        for left_out in leave_out(dataset, context.targets):
            held = left_out if dataset.targets else ()
            sources = [d for d in dataset.domain_names if d not in held]
            for target in sources if held or len(sources) > 1 else []:
                away = tuple(sorted({*held, target}))
                for seed in context.seeds:
                    checkpoint = context.train(dataset, training, away, seed, name)
                    yield Asked(name, target, seed, checkpoint, checkpoint.part(target))
            if not held:
                break  # every domain has been a pretend target once


def _right(asked: Asked, options: dict[str, Any] | None) -> Any:
    """Whether each sample is answered rightly; None is no adaptation."""
    checkpoint = asked.checkpoint
    settings = replace(checkpoint.settings, num_steps=STEPS, aggregation="energy")
    settings = settings.off() if options is None else replace(settings, **options)
    said = EnergyAdaptation(settings)(checkpoint.network, asked.part.feature).probabilities
    return checkpoint.codes[said.argmax(1)] == asked.part.label


def _without_places(table: Any) -> Any:
    """Name, mean and difference: a dozen pretend targets would not fit a page."""
    short = [[row[0], *row[-2:]] if len(row) > 3 else row for row in table.rows]
    return replace(table, header=[table.header[0], *table.header[-2:]], rows=short)
