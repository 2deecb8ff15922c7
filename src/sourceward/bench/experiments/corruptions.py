"""One clean source: corruptions as targets; noise, or other corruptions, as training shifts."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sourceward._util.errors import InputError
from sourceward.bench.experiments.base import ADAPTED, OFF, Case, Context, Outcome, experiment, wanted_targets
from sourceward.bench.experiments.scores import Scores
from sourceward.data import DomainDataset
from sourceward.data.corrupting import CLEAN, corrupted_domains
from sourceward.data.corruptions import EXTRA_CORRUPTIONS, TEST_CORRUPTIONS

SMALL = ("gaussian_noise", "contrast")
NEGATIVES = {"noise": "noise as negatives", "corruptions": "other corruptions as negatives"}
"""By the setting `shifts` of `fit`. Features cannot be corrupted: noise alone."""


def check(context: Context) -> None:
    """Refuse texts, and features without a clean domain."""
    for name, dataset in context.datasets():
        if dataset.kind == "text":
            raise InputError(f"Experiment 'corruptions' corrupts images, but '{name}' holds texts.")
        domains = dataset.domain_names
        if dataset.kind == "features" and (CLEAN not in domains or len(domains) < 2):
            raise InputError(
                "Experiment 'corruptions' needs features with a domain 'clean' and one for each corruption, "
                f"but '{name}' has {', '.join(domains)}. Name images: they are corrupted here."
            )
        wanted_targets(context.targets, _possible(context, dataset))


@experiment(
    "corruptions",
    "Train on clean images alone, evaluate on 15 corruptions; shifts in training are noise or 4 others.",
    "images, whose first domain is taken as clean, or features with a domain `clean`",
    check,
)
def corruptions(context: Context) -> Outcome:
    scores, known = Scores(), []
    for name, dataset in context.datasets():
        targets = wanted_targets(context.targets, _possible(context, dataset))
        data = _with_corruptions(dataset, targets)
        known += context.published("corruptions", data)
        for how, case in _cases(context, name, data, targets):
            for word, steps in ((OFF, 0), (ADAPTED, context.num_steps)):
                scores.add(f"{how}, {word}", case.where, case.seed, case.right_after(num_steps=steps))
    against = {f"{how}, {ADAPTED}": f"{how}, {OFF}" for how in NEGATIVES.values()}
    caption = (
        f"Accuracy, %, at {context.num_steps} steps, severity 5. The published rows are 100 less the error "
        "of networks trained on the clean images."
    )
    known = [replace(row, mean=100 - row.mean, measure="accuracy %") for row in known]
    return Outcome(
        [scores.table("accuracy, %", against, known, caption)],
        [scores.drawing("corruptions", against)],
        numbers={"rows": scores.numbers(against)},
    )


def _cases(
    context: Context, name: str, data: DomainDataset, targets: list[str]
) -> Iterator[tuple[str, Case]]:
    """Yield every target, after trainings on the clean samples with each kind of negatives."""
    left_out = tuple(sorted(domain for domain in data.domain_names if domain != CLEAN))
    for shifts, how in NEGATIVES.items():
        if shifts == "noise" or data.kind == "image":
            training = context.with_settings(shifts=shifts)
            for seed in context.seeds:
                checkpoint = context.train(data, training, left_out, seed, name)
                for target in targets:
                    yield how, Case(name, target, seed, checkpoint, checkpoint.part(target))


def _possible(context: Context, dataset: DomainDataset) -> list[str]:
    """Return the corruptions that can be targets: those of the data, or those applied to clean images."""
    if CLEAN in dataset.domain_names:
        return [name for name in dataset.domain_names if name not in (CLEAN, *EXTRA_CORRUPTIONS)]
    return list(SMALL if context.small else TEST_CORRUPTIONS)


def _with_corruptions(dataset: DomainDataset, targets: list[str]) -> DomainDataset:
    """Return clean samples and corrupted ones, which are made of the first domain's validation images."""
    if CLEAN in dataset.domain_names:
        return dataset
    clean = dataset.of_domains([dataset.domain_names[0]])
    return corrupted_domains(clean, targets, size=None if isinstance(clean.items, np.ndarray) else 64)
