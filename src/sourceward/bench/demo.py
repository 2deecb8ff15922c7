"""The demo: two deployments of scikit-learn's digits. `fit` decides, then the targets are measured.

Every domain has digits of its own. A target is not touched before `fit` has stated what to expect of it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sourceward._util.errors import InputError
from sourceward.adaptation import create_adapter
from sourceward.bench.protocol.controls import linear_control
from sourceward.data import DomainDataset
from sourceward.data.dataset import build
from sourceward.data.known.mnist import rotate_arrays
from sourceward.estimator import EnergyAdapter
from sourceward.fitting import fit
from sourceward.functional.metrics import paired_interval
from sourceward.model import Model
from sourceward.model.evaluation import dataset_features

DEFAULT, NONE, ROTATE = "default", "no adaptation", "rotate on every image"
PAPER, PAPER_NONE = "paper: 20 Langevin steps", "paper: without steps"
LINEAR, T3A = "logistic regression", "T3A (keeps state)"
TRANSFORM = "rotate"
CARDS = 3
"""Samples of each kind that a page shows."""

PAD, LEVELS = 4, 16
"""An 8x8 square rotated by 45 degrees is 11.3 pixels wide: padded to 16, no corner is cut. The grey levels of
scikit-learn's digits are 0 to 16."""

ANGLES, NEW_ANGLE = (0, 30, 90, 120), 60
PARTS = "ABCDE"

SETTINGS: dict[str, Any] = {
    "image_size": 16,
    "augmentation.hflip": 0.0,
    "finetune.max_iter": 200,
    "finetune.head_learning_rate": 1e-2,
    "finetune.backbone_learning_rate": 1e-2,
    "finetune.freeze_batchnorm": False,
    "finetune.average": 0.98,
    "crossfit": 1.0,
    "max_iter": 100,
    "batch_size": 64,
}
"""For a small network from random weights, chosen by accuracy on held-out sources. The rest are defaults."""

QUICK = SETTINGS | {
    "finetune.max_iter": 2,
    "max_iter": 2,
    "batch_size": 8,
    "train": {"chains": 4, "num_steps": 2},
}


@dataclass(frozen=True)
class Deployment:
    """Labelled sources and one target, with a title and a sentence about them."""

    name: str
    title: str
    about: str
    data: DomainDataset

    @property
    def target(self) -> str:
        return self.data.targets[0]


class Measured(NamedTuple):
    """What the target shows: numbers, ready for JSON, and single samples."""

    numbers: dict[str, Any]
    cards: list[dict[str, Any]]


def deployments(seed: int, per_domain: int | None = None) -> list[Deployment]:
    """Return the two deployments: a new angle, and new writers.

    Args:
        seed: of which digit gets which angle.
        per_domain: digits of each domain; a fifth of the 1,797 when None.
    """
    from sklearn.datasets import load_digits

    if seed < 0:
        raise InputError(f"Expected `--seed` to be 0 or more, but got {seed}.")
    data = load_digits()
    pixels = (data.images * (255 // LEVELS)).astype(np.uint8)
    image, label = np.pad(pixels, ((0, 0), (PAD, PAD), (PAD, PAD))), data.target
    order = np.random.default_rng(seed).permutation(len(label))
    mixed, ordered = (np.array_split(rows, 5) for rows in (order, np.arange(len(label))))
    angles = [*ANGLES, NEW_ANGLE]
    rotated = {f"{angle}°": (rotate_arrays(image[r], angle), label[r]) for angle, r in zip(angles, mixed)}
    people = {f"writers {part}": (image[rows], label[rows]) for part, rows in zip(PARTS, ordered)}
    return [
        Deployment(
            "angle",
            f"A new angle: trained on digits at 0°, 30°, 90° and 120°, deployed at {NEW_ANGLE}°",
            "The camera of the new site is mounted at another angle than any before. The angle lies between "
            "those of the sources, so it is easier than a held-out source: the expected accuracy is likely "
            "too low.",
            _dataset(rotated, per_domain),
        ),
        Deployment(
            "writers",
            "New writers: trained on the digits of some people, deployed on those of others",
            "Upright digits. The rows of one writer follow one another in scikit-learn's file: of five equal "
            "parts, the last is the target.",
            _dataset(people, per_domain),
        ),
    ]


def _dataset(domains: dict[str, tuple[np.ndarray, np.ndarray]], per_domain: int | None) -> DomainDataset:
    """A dataset of one array of images and labels per domain; the last domain is the target."""
    parts = {name: (images[:per_domain], labels[:per_domain]) for name, (images, labels) in domains.items()}
    return build(
        "image",
        np.concatenate([images for images, _ in parts.values()])[:, None],
        [str(label) for _, labels in parts.values() for label in labels],
        [name for name, (_, labels) in parts.items() for _ in labels],
        [f"{name}/{row:04d}" for name, (_, labels) in parts.items() for row in range(len(labels))],
        domain_names=list(parts),
        targets=[list(parts)[-1]],
        name="scikit-learn's digits",
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: small tensors gain nothing from more, and results do not depend on the cores."""
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def decide(
    deployment: Deployment, folder: Path, seed: int, settings: dict[str, Any], show: bool | None = None
) -> Model:
    """Fit on the sources alone; the model states what to expect of the target."""
    return fit(
        deployment.data,
        out=folder / deployment.name,
        backbone="tiny:conv",
        weights=None,
        settings=settings,
        device="cpu",
        seed=seed,
        progress=show,
    )


def measure(deployment: Deployment, model: Model, settings: dict[str, Any], seed: int) -> Measured:
    """Predict the target by the model, and by controls on the features of the same backbone."""
    start, data = time.monotonic(), deployment.data
    target = data.of_domains(deployment.target)
    label, images = target.labels, target.items
    predicted = {
        DEFAULT: model.adapt(images).label,
        NONE: model.adapt(images, num_steps=0).label,
        ROTATE: model.with_tta(TRANSFORM, cascade=False).adapt(images).label,
        **_on_features(data, deployment.target, model, settings, seed),
    }
    right = {name: answer == label for name, answer in predicted.items()}
    numbers = {
        "title": deployment.title,
        "about": deployment.about,
        "sources": list(model.sources),
        "target": deployment.target,
        "samples": len(label),
        "expected": model.info["expected_gain"],
        "measured": {name: _against(own, right[NONE]) for name, own in right.items()},
        "seconds": round(model.info["metrics"]["seconds"] + time.monotonic() - start, 1),
    }
    return Measured(numbers, _cards(target, predicted))


def _on_features(
    data: DomainDataset, target: str, model: Model, settings: dict[str, Any], seed: int
) -> dict[str, np.ndarray]:
    """Predictions of the paper's configuration, of logistic regression and of T3A on the same features."""
    rescaled = dataset_features(model, data, False)
    feature = model.network.raw(rescaled).cpu().numpy()
    unseen = data.domains == data.domain_names.index(target)
    train = np.zeros(len(data), dtype=bool)
    train[data.train_val_indices()[0]] = True
    train &= ~unseen
    x, y, domain = feature[train], data.labels[train], data.domains[train]
    own = {name: settings[name] for name in ("max_iter", "batch_size")}
    paper = EnergyAdapter.paper(**own, random_state=seed, verbose=False).fit(x, y, sample_domain=domain)
    found = {PAPER: paper.predict(feature[unseen])}
    found[PAPER_NONE] = paper.set_params(num_steps=0).predict(feature[unseen])
    found[LINEAR] = linear_control(x, y, domain)(feature[unseen]).argmax(1)
    rows = torch.from_numpy(np.flatnonzero(unseen))
    found[T3A] = create_adapter("t3a")(model.network, rescaled[rows]).label
    return found


def _against(right: np.ndarray, before: np.ndarray) -> dict[str, float]:
    change = right.astype(int) - before.astype(int)
    low, high = paired_interval([change])
    return {
        "accuracy": float(right.mean()),
        "gain": float(change.mean()),
        "gain_low": low,
        "gain_high": high,
        "saved": int((change > 0).sum()),
        "lost": int((change < 0).sum()),
    }


def _cards(target: DomainDataset, predicted: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """The first samples that rotate saves and loses."""
    before, after, label = predicted[NONE], predicted[ROTATE], target.labels
    cards = []
    for good, rows in (
        (True, (before != label) & (after == label)),
        (False, (before == label) & (after != label)),
    ):
        for row in np.flatnonzero(rows)[:CARDS]:
            names = [target.classes[code] for code in (label[row], before[row], after[row])]
            cards.append({"image": target.items[row, 0], "good": good, "names": names})
    return cards
