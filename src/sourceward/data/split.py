"""Split source samples into rows to train on and rows to validate on."""

import numpy as np

from sourceward.data.dataset import DomainDataset

SourceSplit = tuple[DomainDataset, list[slice], list[slice]]
"""The reordered samples, the training rows of each source, the validation rows of each source."""


def split_sources(sources: DomainDataset, fraction: float = 0.1) -> SourceSplit:
    """Reorder the samples: training rows source by source, then validation rows source by source.

    Each part is shuffled, so that its first rows are a random sample of it.
    """
    parts = []
    for rows in sources.train_val_indices(fraction):
        rows = rows[np.random.default_rng(0).permutation(len(rows))]
        parts += [rows[sources.domains[rows] == code] for code in range(len(sources.domain_names))]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    slices = [slice(end - len(part), end) for part, end in zip(parts, ends)]
    count = len(sources.domain_names)
    return sources.select(np.concatenate(parts)), slices[:count], slices[count:]
