"""What a model predicts on held-out samples of its sources: the reference of drift."""

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation import AdaptationResult
from sourceward.adaptation.tta import predict_copies
from sourceward.data import DomainDataset
from sourceward.model.evaluation import dataset_copies
from sourceward.model.model import Model

ROWS = 500
"""Samples of each source, at most: more make a critical value hardly smaller, and the folder larger."""


@torch.no_grad()
def held_out_statistics(model: Model, dataset: DomainDataset, progress: bool | None = None) -> Tensor:
    """Energies of each source, confidence, agreement and source number of samples: (rows, sources + 3).

    Args:
        model: as it will be deployed, with its steps and transforms.
        dataset: samples of the sources that nothing was trained on.
        progress: show bars.
    """
    numbers = [np.flatnonzero(dataset.domains == code) for code in range(len(dataset.domain_names))]
    rows = np.concatenate([spread(own, ROWS) for own in numbers])
    part = dataset.select(rows)
    copies = dataset_copies(model, part, model.tta, progress)
    result = predict_copies(model.network, copies, model.settings, model.tta, model.tta_thresholds)
    source = [model.sources.index(dataset.domain_names[code]) for code in part.domains]
    return torch.from_numpy(np.column_stack([*statistics(result), source]).astype(np.float32))


def statistics(result: AdaptationResult) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Energies (n, sources), confidence (n,) and agreement (n,)."""
    return result.energy_before, result.probabilities.max(1), result.agreement


def spread(rows: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the rows, at equal distances.

    >>> spread(np.arange(10), 4), spread(np.arange(3), 4)
    (array([0, 2, 5, 7]), array([0, 1, 2]))
    """
    return rows if len(rows) <= count else rows[np.arange(count) * len(rows) // count]
