"""Loading samples for a backbone: resident on the device where they fit, streamed where they do not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward._util.progress import progress_bar
from sourceward.data import DomainDataset, decode_images
from sourceward.data.augment import Augmentation, augment
from sourceward.data.dataset import split_sources
from sourceward.data.decode import INTERPOLATIONS, Geometry
from sourceward.data.feeds import Feed, Inputs, ResidentFeed, prepared
from sourceward.data.stream import DomainBatches, fits_in_memory, in_order, stream_batches
from sourceward.functional.losses import Batch
from sourceward.nn.alone import encode_alone
from sourceward.nn.backbones import Backbone, ImagePreprocessing


def rows_per_pass(device: torch.device) -> int:
    """Rows of one backbone pass without training.

    On a CPU a sample is alone, see `nn.alone`: its features do not depend on other samples, and cost about
    as much as in a batch.
    """
    return 512 if device.type == "cuda" else 1


def rows_per_chunk(device: torch.device) -> int:
    """Rows that are read together, ahead of those that are computed."""
    return 512 if device.type == "cuda" else max(16, 4 * torch.get_num_threads())


class StoredSamples(Protocol):
    """Samples that a backbone can read, row by row."""

    @property
    def normalize(self) -> Callable[[Tensor], Inputs]:
        """From stored rows to what the backbone takes."""

    def stored(self, rows: slice) -> Iterator[Tensor]:
        """Rows in order, as they are stored: uint8 pixels for images."""

    def batches(self, rows: slice) -> Iterator[Inputs]:
        """Rows in order, not augmented."""


@dataclass(frozen=True)
class ChangedSamples:
    """Samples, shown otherwise than they are kept: a kind of change says how in `kept`."""

    samples: StoredSamples

    @property
    def normalize(self) -> Callable[[Tensor], Inputs]:
        return self.samples.normalize

    def stored(self, rows: slice) -> Iterator[Tensor]:
        raise NotImplementedError

    def batches(self, rows: slice) -> Iterator[Inputs]:
        return map(self.normalize, self.stored(rows))


class Samples(StoredSamples, Protocol):
    """The samples of one dataset, for prediction and for training."""

    def feed(self, parts: list[slice], labels: Tensor, batch_size: int, seed: int, start: int) -> Feed:
        """Training batches: `batch_size` rows of each part, from iteration `start` on."""


@dataclass(frozen=True)
class Resident:
    """Rows that live on the device: features, uint8 images, or tokens.

    `normalize` turns rows into what the backbone takes; `augmented` does so for training. `change` makes
    shifted copies of the rows of a training batch, which serve a single source as negatives.
    """

    rows: Tensor
    normalize: Callable[[Tensor], Inputs]
    augmented: Callable[[Tensor, torch.Generator], Inputs] | None = None
    change: Callable[[Tensor, torch.Generator], Tensor] | None = None

    def stored(self, rows: slice) -> Iterator[Tensor]:
        yield from self.rows[rows].split(rows_per_pass(self.rows.device))

    def batches(self, rows: slice) -> Iterator[Inputs]:
        return map(self.normalize, self.stored(rows))

    def feed(self, parts: list[slice], labels: Tensor, batch_size: int, seed: int, start: int) -> Feed:
        inputs, own = [self.rows[part] for part in parts], [labels[part] for part in parts]
        return ResidentFeed(inputs, own, batch_size, prepare=self.augmented, change=self.change)


@dataclass(frozen=True)
class Streamed:
    """Image files decoded by worker processes, a few batches ahead; `change` as in `Resident`."""

    dataset: DomainDataset
    shape: Geometry
    normalize: Callable[[Tensor], Inputs]
    augmented: Callable[[Tensor, torch.Generator], Inputs]
    device: torch.device
    change: Callable[[Tensor, torch.Generator], Tensor] | None = None

    def stored(self, rows: slice) -> Iterator[Tensor]:
        part = self.dataset.select(np.arange(len(self.dataset))[rows])
        for batch in self._stream(part, in_order(len(part), rows_per_pass(self.device))):
            yield batch.images.to(self.device, non_blocking=True)

    def batches(self, rows: slice) -> Iterator[Inputs]:
        return map(self.normalize, self.stored(rows))

    def feed(self, parts: list[slice], labels: Tensor, batch_size: int, seed: int, start: int) -> Feed:
        rows = np.concatenate([np.arange(len(self.dataset))[part] for part in parts])
        part = self.dataset.select(rows)
        stream = self._stream(part, DomainBatches(part.domains, batch_size, seed, start))

        def draw(generator: torch.Generator) -> Batch:
            batch = next(stream)
            own = batch.labels.to(self.device, non_blocking=True).view(len(parts), batch_size)
            images = batch.images.to(self.device, non_blocking=True)
            return prepared(images, own, self.augmented, self.change, generator)

        return draw

    def _stream(self, dataset: DomainDataset, batches: Any) -> Iterator[Any]:
        return stream_batches(dataset, self.shape, batches)


def prepare_samples(
    dataset: DomainDataset,
    backbone: Backbone | None,
    device: torch.device,
    augmentation: Augmentation | None = None,
    show: bool | None = None,
    streams: bool | None = None,
) -> Samples:
    """The samples of `dataset` for `backbone`: on the device where they fit, streamed where they do not; as
    `streams` says, where it says so."""
    check_kind(dataset.kind, backbone)
    if backbone is None:
        return Resident(torch.from_numpy(dataset.items).to(device), lambda rows: rows)
    if dataset.kind == "text":
        return _tokens(dataset, backbone, device)
    assert isinstance(backbone.preprocessing, ImagePreprocessing)
    shape = image_geometry(backbone.preprocessing)
    normalize, augmented = _image_steps(backbone.preprocessing, augmentation or Augmentation())
    if not _fits(dataset, shape, device) if streams is None else streams:
        return Streamed(dataset, shape, normalize, augmented, device)
    with progress_bar(len(dataset), "reading images", show) as advance:
        images = decode_images(dataset, shape, progress=lambda done, _: advance(done))
    return Resident(images.to(device), normalize, augmented)


def check_kind(kind: str, backbone: Backbone | None) -> None:
    expected = "features" if backbone is None else backbone.kind
    if kind == expected:
        return
    hint = {
        "features": "Features need no backbone.",
        "image": "Use an image backbone such as 'timm:resnet18'.",
        "text": "Use a text backbone such as 'hf:distilbert-base-uncased'.",
    }[kind]
    name = "a model of features" if backbone is None else f"the {backbone.kind} backbone {backbone.spec}"
    raise InputError(f"Expected {expected} for {name}, but the data holds {kind}. {hint}")


def image_geometry(preprocessing: ImagePreprocessing) -> Geometry:
    """How the reader of image files makes what `preprocessing` describes."""
    known = preprocessing.interpolation in INTERPOLATIONS
    return Geometry(
        *preprocessing.size,
        "crop" if preprocessing.keep_aspect else "exact",
        preprocessing.crop_fraction,
        preprocessing.interpolation if known else "bilinear",
    )


class Batches(Protocol):
    """Anything that yields batches for a backbone."""

    def batches(self, rows: slice) -> Iterator[Inputs]: ...


@torch.no_grad()
def encode(
    network: Callable[[Any], Tensor], samples: Batches, rows: slice, advance: Callable | None = None
) -> Tensor:
    """Features of `rows`, in order; bfloat16 inside the backbone on CUDA."""
    parts: list[Tensor] = []
    done = 0
    for feature in _encoded(network, samples.batches(rows)):
        parts.append(feature.float())
        done += len(feature)
        if advance is not None:
            advance(done)
    return torch.cat(parts)


def _encoded(network: Callable[[Any], Tensor], batches: Iterator[Inputs]) -> Iterator[Tensor]:
    for batch in batches:
        device = (next(iter(batch.values())) if isinstance(batch, dict) else batch).device
        if device.type == "cpu":
            some = [batch, *islice(batches, rows_per_chunk(device) - 1)]
            yield from encode_alone([(network, one) for one in some])
        else:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                yield network(batch)


def _tokens(dataset: DomainDataset, backbone: Backbone, device: torch.device) -> Resident:
    """All texts as one tensor (rows, kinds of token tensors, longest)."""
    tokens = backbone.prepare([*dataset.items])
    names = list(tokens)
    mask = names.index("attention_mask")

    def unpack(rows: Tensor) -> Inputs:
        if rows.device.type == "cpu":  # padding is work; on a device, asking how much would make it wait
            rows = rows[..., : int(rows[:, mask].sum(-1).max())]
        return dict(zip(names, rows.unbind(1)))

    rows = torch.stack([tokens[name] for name in names], dim=1).to(device)
    return Resident(rows, unpack, lambda rows, generator: unpack(rows))


def _image_steps(
    preprocessing: ImagePreprocessing, augmentation: Augmentation
) -> tuple[Callable[[Tensor], Inputs], Callable[[Tensor, torch.Generator], Inputs]]:
    """uint8 images of the right size to normalised ones, and the same with augmentation."""

    def laid_out(images: Tensor) -> Tensor:
        fast = images.device.type == "cuda"
        return images.contiguous(memory_format=torch.channels_last) if fast else images

    def augmented(images: Tensor, generator: torch.Generator) -> Inputs:
        mean, std = preprocessing.mean, preprocessing.std
        return laid_out(augment(images, augmentation, generator=generator, mean=mean, std=std))

    return lambda images: laid_out(preprocessing.normalize(images)), augmented


def _fits(dataset: DomainDataset, shape: Geometry, device: torch.device) -> bool:
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        if len(dataset) * 3 * shape.height * shape.width > free / 3:
            return False
    return fits_in_memory(dataset, shape)


LOOK = 4096
"""Samples of a source that scale, class centres and validation use while a backbone trains; the class centres
of the finished model come from all of them."""


@dataclass
class SourceData:
    """Samples of the sources, loaded, and which rows serve what."""

    dataset: DomainDataset
    samples: Samples
    labels: Tensor
    train: list[slice]
    val: list[slice]

    def first(self, rows: slice) -> slice:
        """At most `LOOK` of the rows."""
        return slice(rows.start, min(rows.stop, rows.start + LOOK))


def load_sources(
    sources: DomainDataset,
    backbone: Backbone | None,
    device: torch.device,
    fraction: float,
    augmentation: Augmentation | None = None,
    show: bool | None = None,
    streams: bool | None = None,
) -> SourceData:
    """Load the sources: rows to train on of each source first, then rows to validate on of each.

    Args:
        sources: labelled domains.
        backbone: that reads them; None for features.
        device: where they go.
        fraction: share of each class of each source to validate on, where the data has no split.
        augmentation: of training images.
        show: progress bar.
        streams: see `prepare_samples`.
    """
    dataset, train, val = split_sources(sources, fraction)
    samples = prepare_samples(dataset, backbone, device, augmentation, show, streams)
    return SourceData(dataset, samples, torch.from_numpy(dataset.labels).to(device), train, val)
