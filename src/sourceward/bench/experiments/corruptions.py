"""One clean source: corruptions as targets; noise, or other corruptions, as training shifts."""

from dataclasses import replace

import numpy as np
import torch

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError
from sourceward.bench.experiments.base import ADAPTED, OFF, Context, Outcome, experiment, wanted_targets
from sourceward.bench.experiments.scores import Scores
from sourceward.bench.protocol.provenance import code_version
from sourceward.bench.protocol.runs import key_of
from sourceward.data import DomainDataset
from sourceward.data.corrupting import CLEAN, corrupted_domains
from sourceward.data.corruptions import EXTRA_CORRUPTIONS, TEST_CORRUPTIONS
from sourceward.estimator import EnergyAdapter
from sourceward.training.configuration import settings_for

SMALL = ("gaussian_noise", "contrast")
NEGATIVES = ("noise as negatives", "other corruptions as negatives")
COMPONENTS = 256


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
        features, extra = _features(context, dataset, targets)
        known += context.published("corruptions", features)
        clean, others = features.of_domains([CLEAN]), features.of_domains(extra) if extra else None
        for seed in context.seeds:
            for how in NEGATIVES if others is not None else NEGATIVES[:1]:
                shifted = others if how == NEGATIVES[1] else None
                estimator = _fit(context, clean, shifted, seed, name)
                for target in targets:
                    part = features.of_domains([target])
                    for word, steps in ((OFF, 0), (ADAPTED, context.num_steps)):
                        right = estimator.set_params(num_steps=steps).predict(part.items) == part.labels
                        scores.add(f"{how}, {word}", f"{name}/{target}", seed, right)
    against = {f"{how}, {ADAPTED}": f"{how}, {OFF}" for how in NEGATIVES}
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


def _possible(context: Context, dataset: DomainDataset) -> list[str]:
    """Return the corruptions that can be targets: those of the data, or those applied to clean images."""
    if CLEAN in dataset.domain_names:
        return [name for name in dataset.domain_names if name not in (CLEAN, *EXTRA_CORRUPTIONS)]
    return list(SMALL if context.small else TEST_CORRUPTIONS)


def _features(
    context: Context, dataset: DomainDataset, targets: list[str]
) -> tuple[DomainDataset, list[str]]:
    """Return features of clean and corrupted samples, and the domains that are shifts in training."""
    if dataset.kind == "features":
        return dataset, [d for d in dataset.domain_names if d in EXTRA_CORRUPTIONS]
    extra = [EXTRA_CORRUPTIONS[0]] if context.small else list(EXTRA_CORRUPTIONS)
    if CLEAN not in dataset.domain_names:
        clean = dataset.of_domains([dataset.domain_names[0]])
        size = None if isinstance(clean.items, np.ndarray) else 64
        dataset = corrupted_domains(clean, targets, source_corruptions=extra, size=size)
    return _encode(context, dataset), [d for d in extra if d in dataset.domain_names]


def _encode(context: Context, dataset: DomainDataset) -> DomainDataset:
    """Return features of the frozen backbone, projected on the principal components of the clean ones."""
    from sourceward.data.features import extract_features
    from sourceward.functional import principal_components
    from sourceward.nn.backbones import create_backbone

    training = context.training
    size = training.settings.get("image_size")
    backbone = create_backbone(
        training.backbone or "timm:resnet18",
        weights=training.weights,
        **({"image_size": size} if size else {}),
    )
    backbone.freeze_batchnorm(True)
    found = extract_features(dataset, backbone, choose_device(training.device), False)
    items = torch.from_numpy(found.items)
    clean = items[torch.from_numpy(found.domains == found.domain_names.index(CLEAN))]
    if items.shape[1] > COMPONENTS:
        items = items @ principal_components(clean, COMPONENTS)
    return replace(found, items=items.numpy())


def _fit(
    context: Context, clean: DomainDataset, shifted: DomainDataset | None, seed: int, name: str
) -> EnergyAdapter:
    """Return a model of clean features, trained now or before. Copies of the validation images are no
    shifts in training: targets may be made of the same images."""
    settings = settings_for(False, {"num_steps": context.num_steps} | context.training.settings)
    device = context.training.device
    estimator = EnergyAdapter(**settings.estimator(), random_state=seed, verbose=False, device=device)
    clean = clean.train_val()[0]
    shifted = None if shifted is None else shifted.train_val()[0]
    data = [None if part is None else part.fingerprint() for part in (clean, shifted)]
    key = key_of([code_version(), data, estimator.get_params()])[:10]
    file = context.out / "models" / f"{name}-{CLEAN}-{seed}-{key}" / "estimator.safetensors"
    if file.exists():
        estimator = EnergyAdapter.load(file)
        estimator.network_.to(choose_device(device))
        return estimator
    more = {} if shifted is None else {"X_shifted": shifted.items, "y_shifted": shifted.labels}
    estimator.fit(clean.items, clean.labels, **more)
    file.parent.mkdir(parents=True, exist_ok=True)
    estimator.save(file)
    return estimator
