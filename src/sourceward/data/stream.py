"""Batches of images decoded in worker processes; their rows depend on seed and iteration only."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from sourceward._util.errors import InputError
from sourceward._util.threads import available_cores
from sourceward.data.dataset import DomainDataset
from sourceward.data.decode import (
    Geometry,
    Size,
    check_images,
    geometry,
    resize_arrays,
    try_decode,
)


class ImageBatch(NamedTuple):
    """Images uint8 (N, 3, H, W), labels and domains int64 (N,), and their rows in the dataset."""

    images: torch.Tensor
    labels: torch.Tensor
    domains: torch.Tensor
    indices: torch.Tensor


class DomainBatches:
    """Rows for every iteration: `per_domain` of each domain, domain after domain.

    Each domain has its own epochs, each in a new random order. Iteration t depends on (seed, t) alone, so a
    run that resumes at t continues with the same batches.

    >>> batches = DomainBatches(np.array([0, 0, 0, 1, 1]), per_domain=2, seed=0)
    >>> batches[7].shape, np.array_equal(batches[7], batches[7])
    ((2, 2), True)
    """

    def __init__(
        self, domains: np.ndarray, per_domain: int, seed: int = 0, start: int = 0, stop: int | None = None
    ) -> None:
        if per_domain < 1:
            raise InputError(f"Expected `per_domain` to be 1 or more, but got {per_domain}.")
        self.rows = [np.flatnonzero(domains == code) for code in np.unique(domains)]
        self.per_domain, self.seed, self.start, self.stop = per_domain, seed, start, stop
        self._shuffles: dict[int, tuple[int, np.ndarray]] = {}

    def __getitem__(self, iteration: int) -> np.ndarray:
        """Return the rows (domains, per_domain) of one iteration."""
        return np.stack([self._draw(domain, iteration) for domain in range(len(self.rows))])

    def __iter__(self) -> Iterator[list[int]]:
        iteration = self.start
        while self.stop is None or iteration < self.stop:
            yield self[iteration].ravel().tolist()
            iteration += 1

    def _draw(self, domain: int, iteration: int) -> np.ndarray:
        size = len(self.rows[domain])
        first = iteration * self.per_domain
        places = np.arange(first, first + self.per_domain)
        epochs = range(first // size, places[-1] // size + 1)
        return np.concatenate([self._shuffle(domain, e)[places[places // size == e] % size] for e in epochs])

    def _shuffle(self, domain: int, epoch: int) -> np.ndarray:
        if self._shuffles.get(domain, (-1,))[0] != epoch:
            random = np.random.default_rng((self.seed, domain, epoch))
            self._shuffles[domain] = epoch, random.permutation(self.rows[domain])
        return self._shuffles[domain][1]


def fits_in_memory(dataset: DomainDataset, size: Size, share: float = 0.5) -> bool:
    """Return whether the decoded images take at most `share` of the free memory of this machine."""
    shape = geometry(size)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**32
    return len(dataset) * 3 * shape.height * shape.width <= share * free


class ImageStream(Dataset):
    """Images decoded on access: `stream[row]` is (uint8 (3, H, W) or the reason of a failure, row)."""

    def __init__(self, dataset: DomainDataset, shape: Geometry) -> None:
        check_images(dataset)
        self.dataset, self.shape = dataset, shape

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> tuple[torch.Tensor | str, int]:
        if isinstance(self.dataset.items, np.ndarray):
            return resize_arrays(self.dataset.items[row : row + 1], self.shape)[0], row
        pixels = try_decode(self.dataset.items[row], self.shape)
        return (pixels if isinstance(pixels, str) else torch.from_numpy(pixels)), row


def in_order(length: int, batch_size: int) -> list[list[int]]:
    """Return batches of all rows in order, for prediction and evaluation."""
    return [list(range(start, min(start + batch_size, length))) for start in range(0, length, batch_size)]


def stream_batches(
    dataset: DomainDataset, size: Size, batches: Iterable[Sequence[int]], *, workers: int | None = None
) -> Iterator[ImageBatch]:
    """Decode `batches` of rows in worker processes, a few ahead of the one in use.

    `batches` is a `DomainBatches` for training, or `in_order(len(dataset), n)`; workers=0 decodes in this
    process.
    """
    stream = ImageStream(dataset, geometry(size))
    loader = DataLoader(
        stream,
        batch_sampler=batches,  # type: ignore[arg-type]
        num_workers=available_cores() if workers is None else workers,
        collate_fn=_collate,
    )
    for images, rows, reasons in loader:
        if reasons:
            row, reason = reasons[0]
            raise InputError(
                f"{dataset.ids[row]!r} of '{dataset.name}' cannot be read: {reason}. Replace or remove it; "
                "`sourceward doctor` lists all such images."
            )
        picked = rows.numpy()
        labels, domains = (torch.from_numpy(codes[picked]) for codes in (dataset.labels, dataset.domains))
        yield ImageBatch(images, labels, domains, rows)


def _collate(
    samples: list[tuple[torch.Tensor | str, int]],
) -> tuple[torch.Tensor | None, torch.Tensor, list[tuple[int, str]]]:
    """Return failures as values, so that the main process can raise one error that names the image."""
    reasons = [(row, image) for image, row in samples if isinstance(image, str)]
    images = None if reasons else torch.stack([image for image, _ in samples if not isinstance(image, str)])
    return images, torch.tensor([row for _, row in samples]), reasons
