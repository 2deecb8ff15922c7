"""One clean source: corruptions as targets; noise, or other corruptions, to practise on."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError
from sourceward.bench.cells import key_of
from sourceward.bench.code import code_version
from sourceward.bench.experiments.base import Context, Outcome, experiment, wanted_targets
from sourceward.bench.experiments.scores import Scores
from sourceward.data import DomainDataset
from sourceward.data.corrupting import CLEAN, corrupted_domains
from sourceward.data.corruptions import EXTRA_CORRUPTIONS, TEST_CORRUPTIONS
from sourceward.estimator import EnergyAdapter

SMALL = ("gaussian_noise", "contrast")
NEGATIVES = ("noise as negatives", "other corruptions as negatives")


def check(context: Context) -> None:
    for name, dataset in context.datasets():
        _check_data(dataset, name)
        wanted_targets(context.targets, _possible(context, dataset))


@experiment(
    "corruptions",
    "Train on clean images alone, answer on 15 corruptions; practise on noise or on the 4 extra corruptions.",
    "images, whose first domain is taken as clean, or features with a domain `clean`",
    check,
)
def corruptions(context: Context) -> Outcome:
    scores, published = Scores(), []
    for name, dataset in context.datasets():
        targets = wanted_targets(context.targets, _possible(context, dataset))
        features, extra = _features(context, dataset, targets)
        published += context.published("corruptions", features)
        clean, practice = features.of_domains([CLEAN]), features.of_domains(extra) if extra else None
        for seed in context.seeds:
            for how in NEGATIVES if practice is not None else NEGATIVES[:1]:
                shifted = practice if how == NEGATIVES[1] else None
                estimator = _fit(context, clean, shifted, seed, name)
                for target in targets:
                    part = features.of_domains([target])
                    for word, steps in (("no adaptation", 0), ("adapted", context.num_steps)):
                        right = estimator.set_params(num_steps=steps).predict(part.items) == part.labels
                        scores.add(f"{how}, {word}", f"{name}/{target}", seed, right)
    against = {f"{how}, adapted": f"{how}, no adaptation" for how in NEGATIVES}
    caption = (
        f"Accuracy, % (100 less the error), at {context.num_steps} steps, severity 5. The published rows "
        "are errors "
        "turned round, of networks trained on the clean images."
    )
    turned = [replace(row, mean=100 - row.mean, measure="accuracy %") for row in published]
    return Outcome(
        [scores.table("accuracy, %", against, turned, caption)],
        [scores.drawing("corruptions", against)],
        numbers={"rows": scores.numbers(against)},
    )


def _check_data(dataset: DomainDataset, name: str) -> None:
    """Say why data cannot serve."""
    if dataset.kind == "text":
        raise InputError(f"Experiment 'corruptions' corrupts images, but '{name}' holds texts.")
    if dataset.kind == "features" and (CLEAN not in dataset.domain_names or len(dataset.domain_names) < 2):
        raise InputError(
            "Experiment 'corruptions' needs features with a domain 'clean' and one for each corruption, but "
            f"'{name}' has {', '.join(dataset.domain_names)}. Name images: they are corrupted here."
        )


def _possible(context: Context, dataset: DomainDataset) -> list[str]:
    """The corruptions that are targets: those of the data, or those that clean images are put to."""
    if CLEAN in dataset.domain_names:
        return [name for name in dataset.domain_names if name not in (CLEAN, *EXTRA_CORRUPTIONS)]
    return list(SMALL if context.small else TEST_CORRUPTIONS)


def _features(
    context: Context, dataset: DomainDataset, targets: list[str]
) -> tuple[DomainDataset, list[str]]:
    """Features of clean and corrupted samples, and which domains are to practise on."""
    if dataset.kind == "features":
        return dataset, [d for d in dataset.domain_names if d in EXTRA_CORRUPTIONS]
    extra = [EXTRA_CORRUPTIONS[0]] if context.small else list(EXTRA_CORRUPTIONS)
    if CLEAN not in dataset.domain_names:
        clean = dataset.of_domains([dataset.domain_names[0]])
        dataset = corrupted_domains(
            clean, targets, source_corruptions=extra, size=None if clean_arrays(clean) else 64
        )
    return _encode(context, dataset), [d for d in extra if d in dataset.domain_names]


def clean_arrays(dataset: DomainDataset) -> bool:
    return isinstance(dataset.items, np.ndarray)


def _encode(context: Context, dataset: DomainDataset) -> DomainDataset:
    """Through the frozen backbone, onto the principal components of its clean features."""
    from sourceward.data.features import extract_features
    from sourceward.nn.backbones import create_backbone
    from sourceward.nn.projection import principal_components

    training = context.training
    spec = training.backbone or "timm:resnet18"
    size = training.settings.get("image_size")
    backbone = create_backbone(spec, weights=training.weights, **({"image_size": size} if size else {}))
    backbone.freeze_batchnorm(True)
    found = extract_features(dataset, backbone, choose_device(training.device), False)
    items = torch.from_numpy(found.items)
    clean = items[torch.from_numpy(found.domains == found.domain_names.index(CLEAN))]
    if items.shape[1] > 256:
        items = items @ principal_components(clean, 256)
    return replace(found, items=items.numpy())


def _fit(
    context: Context, clean: DomainDataset, practice: DomainDataset | None, seed: int, name: str
) -> EnergyAdapter:
    """A model of clean features, or what a training left behind the last time. Copies of the images that
    validate are no practice: targets may be made of the same images."""
    known = EnergyAdapter().get_params()
    settings: dict[str, Any] = {k: v for k, v in context.training.settings.items() if k in known}
    estimator = EnergyAdapter(
        **{
            "random_state": seed,
            "verbose": False,
            "num_steps": context.num_steps,
            "device": context.training.device,
            **settings,
        }
    )
    clean = clean.train_val()[0]
    practice = None if practice is None else practice.train_val()[0]
    data = [None if part is None else part.fingerprint() for part in (clean, practice)]
    key = key_of({"of": [code_version(False), data, estimator.get_params()]})[:10]
    file = context.out / "runs" / f"{name}-{CLEAN}-{seed}-{key}" / "estimator.safetensors"
    if file.exists():
        estimator = EnergyAdapter.load(file)
        estimator.network_.to(choose_device(context.training.device))
        return estimator
    shifted: dict[str, Any] = {}
    if practice is not None:
        shifted = {"X_shifted": practice.items, "y_shifted": practice.labels}
    estimator.fit(clean.items, clean.labels, **shifted)
    file.parent.mkdir(parents=True, exist_ok=True)
    estimator.save(file)
    return estimator
