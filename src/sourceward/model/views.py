"""Features of views of a whole dataset."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from sourceward.adaptation.tta import with_tta
from sourceward.data.loading import Shown, encode
from sourceward.data.transforms import look
from sourceward.nn import Network


@dataclass(frozen=True)
class Kept:
    """Images before they are normalised, to look at."""

    samples: Shown

    def batches(self, rows: slice) -> Iterator[Tensor]:
        return self.samples.kept(rows)


def view_features(names: str, network: Network, samples: Shown, rows: slice) -> list[list[Tensor]]:
    """Rescaled features of every picture of each view."""
    sizes: list[int] = []

    def features(images: Tensor) -> Tensor:
        prepared: Any = samples.plain(images)
        return network.features(prepared)

    def pictures(images: Tensor) -> Tensor:
        found = list(with_tta(names, network, features, images, look))
        sizes[:] = map(len, found)
        return torch.stack([feature for view in found for feature in view], 1)

    if not names:
        return []
    together = encode(pictures, Kept(samples), rows).unbind(1)
    ends = list(accumulate(sizes))
    return [list(together[end - size : end]) for end, size in zip(ends, sizes)]
