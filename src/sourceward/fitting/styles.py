"""Styles of the sources' images: kept for test time, and given to other sources' images in training.

See `data.views` for what a style is.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sourceward.data import DomainDataset
from sourceward.data.views import mean_amplitude
from sourceward.features import extract_styled
from sourceward.fitting.arrange import Arranged, arrange
from sourceward.fitting.settings import FitSettings
from sourceward.fitting.stage import Job
from sourceward.inputs import prepare_samples
from sourceward.nn.backbones import Backbone

STYLE_ROWS = 400
"""Images of a source that tell its style."""


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
    number = np.concatenate([np.arange(rows.stop - rows.start) for rows in train])
    toward = (part.domains + 1 + number % (count - 1)) % count
    return extract_styled(part, backbone, job.styles, toward, device, job.progress)


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
