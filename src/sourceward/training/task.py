"""What a fit trains on what: samples on their way to a network, and which rows serve what."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from sourceward.data import DomainDataset
from sourceward.data.features import extract_corrupted, extract_features
from sourceward.data.loading import Resident, Samples, encode, prepare_samples
from sourceward.data.split import SourceSplit as Arranged
from sourceward.data.split import split_sources as arrange
from sourceward.functional import spread
from sourceward.nn import Network
from sourceward.nn.backbones import Backbone
from sourceward.nn.projection import Projected, project_features
from sourceward.training.stage import Job
from sourceward.training.styles import beside, styled_copies, styled_pictures

LOOK = 4096
"""Samples of a source that scale, class centres and validation look at while a backbone trains; the class
centres of the finished model come from all of them."""


@dataclass
class Prepared:
    """Samples on their way to a network, and which rows serve what."""

    dataset: DomainDataset
    samples: Samples
    labels: Tensor
    train: list[slice]
    val: list[slice]

    def first(self, rows: slice) -> slice:
        """As many of the rows as are looked at while a backbone trains, or to settle its views."""
        return slice(rows.start, min(rows.stop, rows.start + LOOK))


@dataclass
class Task(Prepared):
    """What Algorithm 1 trains on what."""

    network: Network
    still: nn.Module | None
    """What comes before the network and is not trained; it joins it in the finished model."""
    look: int | None
    """Rows of a source to look at during training; all when None."""
    plain: list[slice]
    """Of `train`, the samples as they came."""
    pictures: list[list[Tensor]]
    """Of the first samples of each source, half way to the style of every other; none where nobody asks."""

    @property
    def bf16(self) -> bool:
        return self.network.backbone is not None and self.labels.device.type == "cuda"

    def features(self, network: Network, rows: slice, everything: bool = False) -> tuple[Tensor, Tensor]:
        """Rescaled features and labels."""
        if not everything and self.look is not None:
            rows = self.first(rows)
        return encode(network.features, self.samples, rows), self.labels[rows]

    def fit_centers(self, network: Network, everything: bool = False) -> None:
        """Class centres of every source under this network."""
        network.centers.zero_()
        for source, rows in enumerate(self.train):
            network.fit_centers(source, *self.features(network, rows, everything))
        network.fill_centers()

    def fit_scale(self, whiten: bool) -> None:
        """Centre and scale of the source features, before any training."""
        self.network.eval()
        parts = [self.features(self.network, rows) for rows in self.train]
        self.network.fit_scale(torch.cat([x for x, _ in parts]), spread(parts) if whiten else None)


def prepare(arranged: Arranged, backbone: Backbone | None, job: Job, device: torch.device) -> Prepared:
    """Samples ready for the backbone; read by the main process first, and from the cache by the others."""
    dataset, train, val = arranged
    with job.processes.main_first():
        augmentation, streams = job.settings.augmentation, job.folder.streams()
        samples = prepare_samples(dataset, backbone, device, augmentation, job.progress, streams)
    return Prepared(dataset, samples, torch.from_numpy(dataset.labels).to(device), train, val)


def make_task(
    sources: DomainDataset, backbone: Backbone | None, freeze: bool, job: Job, device: torch.device
) -> Task:
    """Algorithm 1 with the backbone, or on the features of one that is frozen."""
    trained, still = (None, backbone) if freeze else (backbone, None)
    shifted = copies = None
    pictures: list[list[np.ndarray]] = []
    if still is not None:
        with job.processes.main_first():
            shifted = _corrupted(sources, still, job, device)
            copies = styled_copies(sources, still, job, device)
            pictures = styled_pictures(sources, still, job, device)
            sources = extract_features(sources, still, device, job.progress)
    dataset, train, val = arrange(sources, job.settings.validation_fraction)
    plain = train
    if copies is not None:
        dataset, train, val = beside(dataset, train, val, copies)
        plain = [slice(rows.start, rows.start + (rows.stop - rows.start) // 2) for rows in train]
    before: nn.Module | None = still
    if trained is None:
        feature, rows = torch.from_numpy(dataset.items), slice(0, train[-1].stop)
        before, feature = project_features(still, feature, rows, job.settings.components)
        dataset = replace(dataset, items=feature.numpy())
    project = before.project if isinstance(before, Projected) else lambda feature: feature
    prepared = prepare((dataset, train, val), trained, job, device)
    if shifted is not None:
        feature = project(shifted[0])
        assert isinstance(prepared.samples, Resident)
        prepared.samples = replace(prepared.samples, shifted=(feature.to(device), shifted[1].to(device)))
    seen = [[project(torch.from_numpy(one)).to(device) for one in own] for own in pictures]
    dim = trained.dim if trained is not None else dataset.items.shape[1]
    network = Network(len(train), len(dataset.classes), dim, job.settings.head, trained).to(device)
    if device.type == "cuda" and trained is not None and trained.kind == "image":
        trained.to(memory_format=torch.channels_last)
    look = None if trained is None else LOOK
    return Task(**vars(prepared), network=network, still=before, look=look, plain=plain, pictures=seen)


def _corrupted(
    sources: DomainDataset, backbone: Backbone, job: Job, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """Features and labels of corrupted copies, where a lone source practises on those."""
    if not job.settings.corrupts(sources.kind, len(sources.domain_names)):
        return None
    dataset, train, _ = arrange(sources, job.settings.validation_fraction)
    part = dataset.select(np.arange(train[-1].stop))
    feature = extract_corrupted(part, backbone, device, job.seed, job.progress)
    return torch.from_numpy(feature), torch.from_numpy(part.labels).repeat(len(feature) // len(part))
