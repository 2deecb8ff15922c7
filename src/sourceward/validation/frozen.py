"""Features of a frozen backbone: what heads and energies train on, and the folds of validation.

With images, a copy of every training image with Fourier amplitudes mixed toward another source is trained on,
too; the fold of a source leaves out the copies that were mixed toward it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation.tta import CopyFeatures
from sourceward.data import DomainDataset
from sourceward.data.features import extract_amplitude_mixed, extract_features
from sourceward.data.loading import prepare_samples
from sourceward.data.transforms import mean_amplitude
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.training.run_folder import Context
from sourceward.validation.crossfit import STATISTICS_ROWS, TTA_ROWS
from sourceward.validation.folds import TEST_ROWS, Fold, Source, chosen_rows


class FrozenSources:
    """Training rows of the sources under a frozen backbone, or features that were given.

    Args:
        sources: labelled domains.
        rows: training rows of each source, in the order of the data.
        backbone: None for features.
        context: of the fit.
        amplitudes: mean Fourier amplitudes of the sources, where copies are trained on.
    """

    def __init__(
        self,
        sources: DomainDataset,
        rows: Sequence[np.ndarray],
        backbone: Backbone | None,
        context: Context,
        amplitudes: Tensor | None,
    ) -> None:
        self.dataset, self.rows, self.backbone, self.context = sources, rows, backbone, context
        self.amplitudes = amplitudes
        self.toward = [directions(number, len(own), len(rows)) for number, own in enumerate(rows)]
        encoded = sources
        if backbone is not None:
            with context.part("features"):
                encoded = extract_features(sources, backbone, context.device, context.progress)
        self.feature = torch.from_numpy(np.asarray(encoded.items, dtype=np.float32))
        self.label = torch.from_numpy(sources.labels)
        with context.part("features of mixed copies"):
            self.copies = [self._mixed(r, t) for r, t in zip(rows, self.toward)] if self._copies() else None

    def sources(self) -> list[Source]:
        """Everything to train on."""
        return [self._source(number, None) for number in range(len(self.rows))]

    def folds(self, transforms: Sequence[str]) -> Iterator[Fold]:
        """Each source held out in turn, with copies of its first rows where transforms are to be chosen."""
        for number, name in enumerate(self.dataset.domain_names):
            others = [other for other in range(len(self.rows)) if other != number]
            train = [self._source(other, number) for other in others]
            own = self.rows[number]
            chosen = own[chosen_rows(len(own), TTA_ROWS if transforms else TEST_ROWS)]
            copies = {}
            if transforms:
                size = self._copy_size()
                parts = [self._mixed(chosen, np.full(len(chosen), other), size) for other in others]
                copies = {"fourier": [CopyFeatures(part, 1 / len(parts)) for part in parts]}
            yield Fold(name, train, self.feature[chosen], self.label[chosen], copies)

    def _copies(self) -> bool:
        return self.amplitudes is not None and self.context.settings.fourier_copies and len(self.rows) > 1

    def _source(self, number: int, held_out: int | None) -> Source:
        rows = self.rows[number]
        source = Source(self.feature[rows], self.label[rows])
        if self.copies is None:
            return source
        kept = np.flatnonzero(self.toward[number] != held_out)
        return source._replace(copy=self.copies[number][kept], copy_of=torch.from_numpy(kept))

    def _copy_size(self) -> tuple[int, int]:
        """Of the copies at test time; those to train on are as large as the images."""
        assert self.backbone is not None
        assert isinstance(self.backbone.preprocessing, ImagePreprocessing)
        return self.backbone.preprocessing.copy_size

    def _mixed(self, rows: np.ndarray, toward: np.ndarray, size: tuple[int, int] | None = None) -> Tensor:
        """Features of copies mixed toward a source each."""
        assert self.backbone is not None
        assert self.amplitudes is not None
        part, context = self.dataset.select(rows), self.context
        found = extract_amplitude_mixed(
            part, self.backbone, self.amplitudes, toward, context.device, context.progress, size
        )
        return torch.from_numpy(found)


def directions(source: int, count: int, sources: int) -> np.ndarray:
    """The other sources in turn: where the amplitudes of each row's copy go.

    >>> directions(1, 5, 3)
    array([2, 0, 2, 0, 2])
    """
    return (source + 1 + np.arange(count) % max(sources - 1, 1)) % sources


def source_amplitudes(
    sources: DomainDataset,
    rows: Sequence[np.ndarray],
    backbone: Backbone | None,
    device: torch.device,
    show: bool | None = False,
) -> Tensor | None:
    """Mean Fourier amplitudes of each source's training images; None where the data is no images."""
    if backbone is None or backbone.kind != "image":
        return None
    found = []
    for own in rows:
        few = own[np.random.default_rng(0).permutation(len(own))[:STATISTICS_ROWS]]
        part = sources.select(few)
        samples = prepare_samples(part, backbone, device, show=show)
        found.append(mean_amplitude(samples.stored(slice(0, len(part)))))
    return torch.stack(found)
