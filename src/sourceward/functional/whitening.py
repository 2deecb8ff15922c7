"""Whitening: scale down directions in which a class varies within a source or between sources.

Shifts among the sources resemble the shift to an unseen domain. Dividing by their size before training keeps
classifiers and energies from relying on those directions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

SHRINK = 0.3
"""Share of the covariance replaced by its mean variance: a few samples do not determine all directions."""


def within_and_between_covariance(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Covariance within class and source plus that of class centres between sources: (dim, dim), double.

    Args:
        parts: (n, dim) features and (n,) labels of each source.

    >>> a, label = torch.tensor([[0.0, 1.0], [0.0, -1.0]]), torch.tensor([0, 0])
    >>> within_and_between_covariance([(a, label), (a + torch.tensor([2.0, 0.0]), label)])
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    dim, rows = parts[0][0].shape[1], sum(len(x) for x, _ in parts)
    within = torch.zeros(dim, dim, dtype=torch.float64)
    centers: dict[int, list[Tensor]] = {}
    for x, y in parts:
        x, y = x.double().cpu(), y.cpu()
        for label in y.unique().tolist():
            own = x[y == label]
            center = own.mean(0)
            within += (own - center).T @ (own - center)
            centers.setdefault(label, []).append(center)
    between = torch.cat([torch.stack(found) - torch.stack(found).mean(0) for found in centers.values()])
    return within / rows + between.T @ between / len(between)


def whitening(covariance: Tensor, shrink: float = SHRINK) -> tuple[Tensor, Tensor]:
    """The symmetric inverse square root of a covariance, and its inverse, both (dim, dim).

    >>> root, back = whitening(torch.diag(torch.tensor([4.0, 1.0])), shrink=0.0)
    >>> root.diagonal().tolist(), back.diagonal().tolist()
    ([0.5, 1.0], [2.0, 1.0])
    """
    size = covariance.diagonal().mean()
    identity = size * torch.eye(len(covariance)).to(covariance)
    values, vectors = torch.linalg.eigh((1 - shrink) * covariance + shrink * identity)
    deviation = values.clamp_min(torch.finfo(torch.float32).tiny).sqrt()
    return (vectors / deviation) @ vectors.T, (vectors * deviation) @ vectors.T
