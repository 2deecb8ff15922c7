"""The gap between sources and target: rotations, with fewer and fewer sources."""

from sourceward._util.errors import InputError
from sourceward.bench.experiments.base import (
    ADAPTED,
    OFF,
    Case,
    Context,
    Drawing,
    Outcome,
    experiment,
    wanted_targets,
)
from sourceward.bench.experiments.scores import Scores
from sourceward.data.known.mnist import SETTINGS, TARGETS

HELD_OUT = [f"{angle:g}" for angle in TARGETS]
"""Never trained on, whichever of them are targets."""


def check(context: Context) -> None:
    """Refuse data whose domains are no angles."""
    wanted = {f"{angle:g}" for angles in SETTINGS.values() for angle in angles} | {*HELD_OUT}
    for name, dataset in context.datasets():
        missing = sorted(wanted - set(dataset.domain_names), key=float)
        if missing:
            raise InputError(
                f"Experiment 'gaps' needs domains that are angles (0, 15, ... 90), but '{name}' has "
                f"{', '.join(dataset.domain_names)}: {', '.join(missing)} missing. Use rotated_mnist:/path."
            )
    wanted_targets(context.targets, HELD_OUT)


@experiment(
    "gaps",
    "Rotations: sources 15 to 75, 30 to 60, and 30 and 45 degrees; targets 0 and 90.",
    "domains that are angles, such as rotated_mnist:/path",
    check,
)
def gaps(context: Context) -> Outcome:
    scores, targets = Scores(), wanted_targets(context.targets, HELD_OUT)
    left_out = tuple(sorted(HELD_OUT))
    for name, dataset in context.datasets():
        for setting, angles in SETTINGS.items():
            part = dataset.of_domains([*(f"{angle:g}" for angle in angles), *HELD_OUT])
            for seed in context.seeds:
                checkpoint = context.train(part, context.with_settings(), left_out, seed, f"{name}-{setting}")
                for target in targets:
                    case = Case(name, target, seed, checkpoint, checkpoint.part(target))
                    for how, steps in ((OFF, 0), (ADAPTED, context.num_steps)):
                        right = case.right_after(num_steps=steps)
                        scores.add(f"sources {setting}, {how}", case.where, seed, right)
    against = {f"sources {s}, {ADAPTED}": f"sources {s}, {OFF}" for s in SETTINGS}
    caption = f"Accuracy, %, at {context.num_steps} steps. Compare the gain with more and with fewer sources."
    return Outcome(
        [scores.table("accuracy, %", against, caption=caption)],
        [_figure(scores, targets)],
        {"rows": scores.numbers(against)},
        ["There are no published numbers to compare with."],
    )


def _figure(scores: Scores, targets: list[str]) -> Drawing:
    lines = {how: [scores.mean(f"sources {s}, {how}") for s in SETTINGS] for how in (OFF, ADAPTED)}
    counts = [len(angles) for angles in SETTINGS.values()]
    panel = {
        "plot": "lines",
        "x": counts,
        "lines": lines,
        "xlabel": "number of sources",
        "ylabel": "accuracy, %",
    }
    caption = f"Mean accuracy on {' and '.join(targets)} degrees against the number of source rotations."
    return Drawing("gaps", caption, (5.0, 3.4), [panel])
