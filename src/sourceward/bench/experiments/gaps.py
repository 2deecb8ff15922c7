"""The gap between sources and target: rotations, with fewer and fewer sources."""

from typing import Any

from sourceward._util.errors import InputError
from sourceward.bench.experiments.base import Context, Drawing, Outcome, experiment, wanted_targets
from sourceward.bench.experiments.scores import Scores
from sourceward.data import DomainDataset
from sourceward.data.known.rotated import SETTINGS, TARGETS

HELD_OUT = [f"{angle:g}" for angle in TARGETS]
"""Never trained on, whichever of them are asked for."""


def check(context: Context) -> None:
    for name, dataset in context.datasets():
        _check_angles(dataset, name)
    wanted_targets(context.targets, HELD_OUT)


@experiment(
    "gaps",
    "Rotations: sources 15 to 75, 30 to 60, and 30 and 45 degrees; targets 0 and 90.",
    "domains that are angles, such as rotated_mnist:/path",
    check,
)
def gaps(context: Context) -> Outcome:
    scores, targets = Scores(), wanted_targets(context.targets, HELD_OUT)
    for name, dataset in context.datasets():
        for setting, angles in SETTINGS.items():
            sources = [f"{angle:g}" for angle in angles]
            part = dataset.of_domains([*sources, *HELD_OUT])
            for seed in context.seeds:
                checkpoint = context.train(
                    part, context.training, tuple(sorted(HELD_OUT)), seed, f"{name}-{setting}"
                )
                for target in targets:
                    rows = checkpoint.part(target)
                    for how, steps in (("no adaptation", 0), ("adapted", context.num_steps)):
                        said = checkpoint.codes[
                            checkpoint.run_chain(rows, num_steps=steps).probabilities.argmax(1)
                        ]
                        scores.add(f"sources {setting}, {how}", f"{name}/{target}", seed, said == rows.label)
    against = {f"sources {s}, adapted": f"sources {s}, no adaptation" for s in SETTINGS}
    caption = (
        f"Accuracy, %, at {context.num_steps} steps. See whether the gain grows as the sources get fewer."
    )
    return Outcome(
        [scores.table("accuracy, %", against, caption=caption)],
        [_figure(scores, targets)],
        {"rows": scores.numbers(against)},
        ["No published numbers are at hand for this one."],
    )


def _check_angles(dataset: DomainDataset, name: str) -> None:
    """Say why data cannot serve."""
    wanted = {f"{angle:g}" for angles in SETTINGS.values() for angle in angles} | {*HELD_OUT}
    missing = sorted(wanted - set(dataset.domain_names), key=float)
    if missing:
        raise InputError(
            f"Experiment 'gaps' needs domains that are angles (0, 15, ... 90), but '{name}' has "
            f"{', '.join(dataset.domain_names)}: {', '.join(missing)} missing. Use rotated_mnist:/path."
        )


def _figure(scores: Scores, targets: list[str]) -> Drawing:
    from sourceward.report import figures

    counts = [len(angles) for angles in SETTINGS.values()]

    def draw(figure: Any) -> None:
        lines = {
            how: [scores.mean(f"sources {setting}, {how}") for setting in SETTINGS]
            for how in ("no adaptation", "adapted")
        }
        figures.draw_lines(figure.subplots(), counts, lines, xlabel="number of sources", ylabel="accuracy, %")

    caption = f"Mean accuracy on {' and '.join(targets)} degrees against the number of source rotations."
    return Drawing("gaps", caption, (5.0, 3.4), draw)
