"""Where chains start: labelled samples that are not the source's own.

The negatives of one source are the positives of the others, so one backbone pass serves all. A lone source
practises on shifted samples that it is given, or on its own under noise.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Rescaled features of every source and, when there are any, labelled shifted ones to practise on."""

    feature: Tensor
    """(sources, batch, dim)."""
    label: Tensor
    """(sources, batch)."""
    shifted: Tensor | None = None
    """(rows, dim): samples of no source; they join the negatives of all."""
    shifted_label: Tensor | None = None
    """(rows,)."""


def negatives(
    batch: Batch, chains: int | None, shift_noise: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Labelled chain starts for each source, (sources, chains, dim): samples that are not its own."""
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
    pick = pick + rows * (pick >= own)  # step over the source's own rows
    return pool[pick], pool_label[pick]


def jitter(feature: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
    """Add Gaussian noise; nothing is drawn when there is none to add."""
    if not std:
        return feature
    eps = torch.randn(feature.shape, generator=generator, device=feature.device, dtype=feature.dtype)
    return feature + std * eps
