"""Domains that are built to break a decision over domains, and their features under a frozen backbone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sourceward._util.devices import choose_device
from sourceward.bench.experiments.base import Context
from sourceward.data import DomainDataset
from sourceward.data.corruptions import corrupt
from sourceward.data.image_ops import adjust_contrast, mix_amplitude_toward, sketch
from sourceward.data.loading import prepare_samples
from sourceward.data.transforms import AMPLITUDE_SHARE, as_bytes, mean_amplitude
from sourceward.fitting.checks import make_backbone
from sourceward.nn.backbones import Backbone

OWN, FAR = "its domains", "far apart"
ROWS, FEW = 1000, 50
"""Images of each domain, and of each source where there are few."""

LEAST = 400
"""Images of a shift: with fewer, a gain has a standard error of more than one and a half points."""


def _corrupted(name: str, severity: int) -> Callable[[Tensor], Tensor]:
    def change(images: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return corrupt(as_bytes(images), name, severity, generator=generator).float() / 255

    return change


SHIFTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda images: images,
    "inverted": lambda images: 1 - images,
    "rotated": lambda images: images.rot90(1, (-2, -1)),
    "tinted": lambda images: images[:, [2, 0, 1]] * images.new_tensor([1.0, 0.6, 0.2])[:, None, None],
    "noisy": _corrupted("gaussian_noise", 5),
    "sketch": lambda images: sketch(images, torch.full_like(images[:, 0, 0, 0], 2.0)),
    "dim": lambda images: 0.3 * adjust_contrast(images, torch.full_like(images[:, 0, 0, 0], 0.3)),
}
"""Far from one another, label-preserving, and of kinds that no augmentation of training has."""


class Domains(NamedTuple):
    """Features of domains and of their copies toward one another."""

    names: Sequence[str]
    plain: list[Tensor]
    mixed: list[list[Tensor]]
    """`mixed[i][j]`: domain i with the Fourier amplitudes of domain j."""
    label: list[Tensor]
    classes: int


def domains_of(context: Context, dataset: DomainDataset) -> Iterator[tuple[str, Domains, Domains]]:
    """Yield the domains as they are, shifts of the first, and these with few rows or unequal classes: what
    sources are trained on, and what targets are tested on. Where rows are few, targets still have all."""
    settings = context.training.fit_settings("image")
    backbone = make_backbone(dataset, context.training.backbone, context.training.weights, settings, False, 0)
    assert backbone is not None
    backbone = backbone.to(choose_device(context.training.device)).eval().requires_grad_(False)
    rng = np.random.default_rng(context.seeds[0])
    parts = [rng.permutation(np.flatnonzero(dataset.domains == c)) for c in range(len(dataset.domain_names))]
    if 4 <= len(parts) <= 6:
        images = [_images(dataset, rows[:ROWS], backbone) for rows in parts]
        labels = [torch.from_numpy(dataset.labels[rows[:ROWS]]) for rows in parts]
        own = _domains(dataset.domain_names, images, labels, backbone)
        yield OWN, own, own
    kinds = dict(list(SHIFTS.items())[: 4 if context.small else None])
    count = min(ROWS, len(parts[0]) // len(kinds))
    if count < LEAST and not context.small:
        return
    rows = [parts[0][i * count : (i + 1) * count] for i in range(len(kinds))]
    changed = [
        as_bytes(shift(_images(dataset, r, backbone).float() / 255)) for r, shift in zip(rows, kinds.values())
    ]
    labels = [torch.from_numpy(dataset.labels[r]) for r in rows]
    shifted = _domains(list(kinds), changed, labels, backbone)
    yield FAR, shifted, shifted
    yield f"{FAR}, few rows", _subset(shifted, [torch.arange(min(FEW, count))] * len(kinds)), shifted
    unequal = _subset(shifted, [_unequal(y, i) for i, y in enumerate(labels)])
    yield f"{FAR}, unequal classes", unequal, unequal


def _unequal(label: Tensor, domain: int) -> Tensor:
    """Rows in which classes are unequal, another one rare in each domain: shares fall from 1 to 1/8."""
    classes = label.unique()
    keep = []
    for place, code in enumerate(classes.tolist()):
        own = torch.nonzero(label == code).flatten()
        share = 0.5 ** (3 * ((place + 2 * domain) % len(classes)) / max(len(classes) - 1, 1))
        keep.append(own[: max(2, round(share * len(own)))])
    return torch.cat(keep).sort().values


def _subset(domains: Domains, rows: Sequence[Tensor]) -> Domains:
    plain = [values[r] for values, r in zip(domains.plain, rows)]
    mixed = [[values[r] for values in own] for own, r in zip(domains.mixed, rows)]
    return domains._replace(plain=plain, mixed=mixed, label=[y[r] for y, r in zip(domains.label, rows)])


def _images(dataset: DomainDataset, rows: np.ndarray, backbone: Backbone) -> Tensor:
    device = next(backbone.parameters()).device
    samples = prepare_samples(dataset.select(rows), backbone, device, show=False)
    return torch.cat(list(samples.stored(slice(0, len(rows)))))


@torch.no_grad()
def _domains(
    names: Sequence[str], images: Sequence[Tensor], labels: list[Tensor], backbone: Backbone
) -> Domains:
    preprocessing: Any = backbone.preprocessing

    def encode(pixels: Tensor) -> Tensor:
        return torch.cat([backbone(preprocessing.normalize(part)).float().cpu() for part in pixels.split(64)])

    amplitudes = [mean_amplitude(own.split(64)) for own in images]
    mixed = []
    for own in images:
        pixels = own.float() / 255
        mixed.append([encode(as_bytes(mix_amplitude_toward(pixels, a, AMPLITUDE_SHARE))) for a in amplitudes])
    classes = 1 + max(int(label.max()) for label in labels)
    return Domains(names, [encode(own) for own in images], mixed, labels, classes)
