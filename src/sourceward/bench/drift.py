"""How often drift alarms: on windows of source samples, of unseen domains, and of corrupted images.

Of every source, `RESERVED` of the samples are put aside before training. In each repetition, a random part of
them is the reference, as large as the one that `fit` keeps, and windows are drawn from the rest: from all
sources, from one source, and the same corrupted; or from the domain that was left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sourceward.data import DomainDataset
from sourceward.data.corruptions import corrupt
from sourceward.data.features import extract_features
from sourceward.data.loading import prepare_samples
from sourceward.deploy.drift import Reference
from sourceward.estimator import EnergyAdapter
from sourceward.model.held_out import ROWS, statistics
from sourceward.nn.backbones import Backbone

RESERVED = 0.4
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "jpeg_compression")
NUM_STEPS = 5
"""Of the predictions whose confidence is a statistic; nothing is chosen, so that one training is enough."""


@dataclass(frozen=True)
class DriftPlan:
    """What is measured.

    Args:
        sizes: of windows.
        references: random references for each rate.
        repeats: windows of each reference.
        images: that are corrupted.
        seed: of everything random.
    """

    sizes: tuple[int, ...] = (50, 200, 1000)
    references: int = 50
    repeats: int = 4
    images: int = 1000
    seed: int = 0


def bench_drift(
    dataset: DomainDataset, targets: Sequence[str], plan: DriftPlan, backbone: Backbone | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a row for each target, kind of window and size: the share of windows that alarm."""
    device = torch.device("cpu")
    images = dataset if dataset.kind == "image" else None
    if backbone is not None:
        backbone = backbone.to(device).eval().requires_grad_(False)
        dataset = extract_features(dataset, backbone, device)
    for target in targets:
        sources = replace(dataset.without([target]), split=None)
        train, rest = sources.train_val_indices(RESERVED, plan.seed)
        part = sources.select(train)
        estimator = EnergyAdapter(num_steps=NUM_STEPS, device="cpu", random_state=plan.seed)
        names = np.array(sources.domain_names)
        estimator.fit(part.items, part.labels, sample_domain=names[part.domains], allow_missing=True)

        def values(features: np.ndarray, estimator: EnergyAdapter = estimator) -> np.ndarray:
            energy, confidence, _ = statistics(estimator.adapt(features))
            return np.column_stack([energy, confidence])

        clean = sources.select(rest)
        shifted = {f"unseen: {target}": values(dataset.of_domains([target]).items)}
        corrupted: dict[str, np.ndarray] = {}
        if images is not None and backbone is not None and target == targets[0]:
            some = np.random.default_rng(plan.seed).permutation(len(clean))[: plan.images]
            shown = images.without([target]).select(rest[some])
            corrupted = {name: values(x) for name, x in corrupted_features(shown, backbone, plan.seed)}
        yield from rates(values(clean.items), clean.domains, shifted | corrupted, plan, target)


@torch.no_grad()
def corrupted_features(
    images: DomainDataset, backbone: Backbone, seed: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the features of images under each corruption and severity."""
    samples = prepare_samples(images, backbone, torch.device("cpu"), show=False)
    for name in CORRUPTIONS:
        for severity in range(1, 6):
            generator = torch.Generator().manual_seed(seed)
            parts = [
                backbone(samples.normalize(corrupt(pixels, name, severity, generator=generator)))
                for pixels in samples.stored(slice(0, len(images)))
            ]
            yield f"{name} {severity}", torch.cat(parts).numpy()


def rates(
    values: np.ndarray, source: np.ndarray, shifted: Mapping[str, np.ndarray], plan: DriftPlan, target: str
) -> Iterator[dict[str, Any]]:
    """Yield the share of windows that alarm, for each kind of window and size.

    Args:
        values: (rows, statistics) of source samples that nothing was trained on.
        source: (rows,), their sources.
        shifted: (rows, statistics) of other samples, by name.
        plan: sizes and repetitions.
        target: the domain that was left out.
    """
    random = np.random.default_rng(plan.seed)
    counted: dict[tuple[str, int], list[bool]] = {}
    for repeat in range(plan.references):
        groups, others = [], []
        for number in np.unique(source):
            rows = random.permutation(np.flatnonzero(source == number))
            kept = min(ROWS, round(len(rows) * 0.1 / RESERVED))  # a tenth of all, as `fit` holds out
            groups.append(values[rows[:kept]])
            others.append(values[rows[kept:]])
        reference = Reference(groups, seed=repeat)
        kinds = {"sources": np.concatenate(others), "one source": others[repeat % len(others)], **shifted}
        for size in plan.sizes:
            for kind, pool in kinds.items():
                for _ in range(plan.repeats if len(pool) >= size else 0):
                    window = pool[random.permutation(len(pool))[:size]]
                    counted.setdefault((kind, size), []).append(reference.test(window).alarm)
    for (kind, size), alarms in counted.items():
        yield {
            "target": target,
            "windows": kind,
            "size": size,
            "count": len(alarms),
            "alarms": round(float(np.mean(alarms)), 4),
        }
