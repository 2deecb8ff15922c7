"""Which rows train, and which select."""

import numpy as np

from sourceward.data import DomainDataset

Arranged = tuple[DomainDataset, list[slice], list[slice]]
"""Samples, rows of each source to train on, rows of each source to select on."""


def arrange(sources: DomainDataset, fraction: float = 0.1) -> Arranged:
    """The samples in the order: rows to train on of each source, then rows to select on of each source.

    Within a part they are shuffled, so that the first few stand for all.
    """
    parts = []
    for rows in sources.train_val_indices(fraction):
        rows = rows[np.random.default_rng(0).permutation(len(rows))]
        parts += [rows[sources.domains[rows] == code] for code in range(len(sources.domain_names))]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    slices = [slice(end - len(part), end) for part, end in zip(parts, ends)]
    half = len(sources.domain_names)
    return sources.select(np.concatenate(parts)), slices[:half], slices[half:]
