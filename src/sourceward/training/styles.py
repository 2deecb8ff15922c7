"""Styles of the sources' images: kept for test time, and given to other sources' images in training.

See `data.views` for what a style is.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sourceward.data import DomainDataset
from sourceward.data.features import extract_styled
from sourceward.data.loading import prepare_samples
from sourceward.data.split import SourceSplit as Arranged
from sourceward.data.split import split_sources as arrange
from sourceward.data.transforms import mean_amplitude
from sourceward.nn.backbones import Backbone
from sourceward.training.configuration import AUTO, FitSettings
from sourceward.training.stage import Job
from sourceward.validation.leave_one_domain_out import FEWEST_SOURCES

STYLE_ROWS = 400
"""Images of a source that tell its style."""

PICTURED = 1000
"""Images of a pretend target that are asked about in the style of every source."""


def source_styles(
    sources: DomainDataset, backbone: Backbone | None, settings: FitSettings, device: torch.device
) -> Tensor | None:
    """Mean amplitudes of each source's images, from as many of the training rows as tell them."""
    if backbone is None or backbone.kind != "image":
        return None
    dataset, train, _ = arrange(sources, settings.validation_fraction)
    styles = []
    for rows in train:
        part = dataset.select(np.arange(rows.start, min(rows.stop, rows.start + STYLE_ROWS)))
        samples = prepare_samples(part, backbone, device, show=False)
        styles.append(mean_amplitude(samples.kept(slice(0, len(part)))))
    return torch.stack(styles)


def styled_copies(
    sources: DomainDataset, backbone: Backbone, job: Job, device: torch.device
) -> np.ndarray | None:
    """Features of the images to train on, each half way to the style of another source, in turn."""
    count = len(sources.domain_names)
    if not job.settings.styles or job.styles is None or count < 2:
        return None
    dataset, train, _ = arrange(sources, job.settings.validation_fraction)
    part = dataset.select(np.arange(train[-1].stop))
    toward = np.concatenate([directions(source, rows, count) for source, rows in enumerate(train)])
    return extract_styled(part, backbone, job.styles, toward, device, job.progress)


def directions(source: int, rows: slice, count: int) -> np.ndarray:
    """The other sources, in turn: where the copy of each training row of a source goes.

    >>> directions(1, slice(10, 15), 3)
    array([2, 0, 2, 0, 2])
    """
    return (source + 1 + np.arange(rows.stop - rows.start) % (count - 1)) % count


def styled_pictures(
    sources: DomainDataset, backbone: Backbone, job: Job, device: torch.device
) -> list[list[np.ndarray]]:
    """Of each source, features of its first training images half way to every other source: what it is asked
    about as a pretend target. None where nobody will ask."""
    count = len(sources.domain_names)
    asks = job.settings.styles and job.settings.views == AUTO and job.settings.num_steps == "auto"
    if not asks or job.styles is None or count < FEWEST_SOURCES:
        return []
    dataset, train, _ = arrange(sources, job.settings.validation_fraction)
    pictures: list[list[np.ndarray]] = [[] for _ in train]
    for toward in range(count):
        own = [
            np.arange(r.start, min(r.stop, r.start + PICTURED)) for s, r in enumerate(train) if s != toward
        ]
        part = dataset.select(np.concatenate(own))
        there = np.full(len(part), toward)
        feature = extract_styled(part, backbone, job.styles, there, device, job.progress)
        for source in (s for s in range(count) if s != toward):
            pictures[source].append(feature[part.domains == source])
    return pictures


def beside(dataset: DomainDataset, train: list[slice], val: list[slice], copies: np.ndarray) -> Arranged:
    """The samples with a copy of each training row after those of its source."""
    own = [np.arange(rows.start, rows.stop) for rows in train]
    rest = np.arange(train[-1].stop, len(dataset))
    again = [len(dataset) + rows for rows in own]
    order = np.concatenate([*(both for pair in zip(own, again) for both in pair), rest])
    items = np.concatenate([dataset.items, copies])[order]
    known = np.concatenate([np.arange(len(dataset)), np.arange(len(copies))])[order]
    added = len(copies)
    return (
        replace(dataset.select(known), items=items),
        [slice(2 * rows.start, 2 * rows.stop) for rows in train],
        [slice(rows.start + added, rows.stop + added) for rows in val],
    )
