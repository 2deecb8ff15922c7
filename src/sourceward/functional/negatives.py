"""Negatives: labelled samples that are not the source's own, from which its chains start in training.

The negatives of one source are the positives of the others, so one backbone pass serves all. A lone source
uses shifted samples if it is given any, otherwise its own samples plus noise.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Rescaled features of every source, and optionally labelled shifted samples."""

    feature: Tensor
    """(sources, batch, dim)."""
    label: Tensor
    """(sources, batch)."""
    shifted: Tensor | None = None
    """(rows, dim): samples of no source, which join the negatives of all."""
    shifted_label: Tensor | None = None
    """(rows,)."""


def negatives(
    batch: Batch, chains: int | None, shift_noise: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Labelled chain starts for each source, none of them its own: (sources, chains, dim), (sources, chains).

    Args:
        batch: features of all sources.
        chains: chains per source; as many as the batch has rows when None.
        shift_noise: std of the noise that turns a lone source's own features into negatives.
        generator: of the draws.
    """
    feature, label = batch.feature, batch.label
    sources, rows = label.shape
    chains, device = chains or rows, feature.device
    if batch.shifted is None and sources == 1:
        return jitter(feature[:, :chains], shift_noise, generator), label[:, :chains]
    pool, pool_label = feature.flatten(0, 1), label.flatten()
    others = (sources - 1) * rows
    if batch.shifted is not None and batch.shifted_label is not None:
        pool, pool_label = torch.cat([pool, batch.shifted]), torch.cat([pool_label, batch.shifted_label])
        others += len(batch.shifted)
    pick = torch.randint(others, (sources, chains), generator=generator, device=device)
    own = torch.arange(sources, device=device).unsqueeze(1) * rows
    pick = pick + rows * (pick >= own)  # skip the source's own rows
    return pool[pick], pool_label[pick]


def jitter(feature: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
    """Add Gaussian noise; with `std` 0 nothing is drawn."""
    if not std:
        return feature
    eps = torch.randn(feature.shape, generator=generator, device=feature.device, dtype=feature.dtype)
    return feature + std * eps
