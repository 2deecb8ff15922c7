"""Folds of leave-one-domain-out validation: each source in turn is held out, the others train a model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation.tta import CopyFeatures

MIN_SOURCES = 3
"""With one of them held out there must be others to take negatives from."""

TEST_ROWS = 2000
"""Samples of a held-out source that are tested."""


class Source(NamedTuple):
    """Features and class numbers of one source domain, before any rescaling."""

    feature: Tensor
    """(rows, dim)."""
    label: Tensor
    """(rows,)."""
    copy: Tensor | None = None
    """(copies, dim): features of transformed copies to train on beside the rows."""
    copy_of: Tensor | None = None
    """(copies,): the row that each is a copy of."""

    def rows(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Features and labels of some rows and of their copies."""
        if self.copy is None or self.copy_of is None:
            return self.feature[mask], self.label[mask]
        kept = mask[self.copy_of]
        feature = torch.cat([self.feature[mask], self.copy[kept]])
        return feature, torch.cat([self.label[mask], self.label[self.copy_of[kept]]])

    def to(self, device: torch.device) -> "Source":
        return Source(*(None if value is None else value.to(device) for value in self))  # type: ignore[arg-type]


class Fold(NamedTuple):
    """One held-out source: what the model without it trains on, and what it is tested on."""

    held_out: str
    train: Sequence[Source]
    feature: Tensor
    """(rows, dim), of the held-out source."""
    label: Tensor
    """(rows,)."""
    copies: Mapping[str, Sequence[CopyFeatures]] = {}
    """Copies of those rows by transform, where test-time augmentation is to be chosen."""


def feature_folds(sources: Sequence[Source], names: Sequence[object]) -> Iterator[Fold]:
    """Folds of sources whose features no backbone was trained for."""
    for number, source in enumerate(sources):
        rows = chosen_rows(len(source.label))
        others = [other for place, other in enumerate(sources) if place != number]
        yield Fold(str(names[number]), others, source.feature[rows], source.label[rows])


def chosen_rows(count: int, limit: int = TEST_ROWS) -> np.ndarray:
    """Rows to test on: all, or a fixed random choice of `limit`."""
    return np.random.default_rng(0).permutation(count)[:limit]
