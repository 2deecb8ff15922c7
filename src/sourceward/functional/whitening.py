"""Whitening: directions in which a class differs between sources, or within one, count less.

A shift that the sources show among themselves is a hint of the shift of an unseen domain. Dividing by its
size before anything is learned keeps classifiers and energies from leaning on it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

SHRINK = 0.3
"""Share of the covariance that is replaced by its mean variance: few samples do not tell all directions."""


def spread(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """What a label does not say: covariance within class and source, plus that of class centres between
    sources.

    Args:
        parts: (n, dim) features and (n,) labels of each source.

    Returns:
        (dim, dim), double.

    >>> a = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    >>> spread([(a, torch.tensor([0, 0])), (a + torch.tensor([2.0, 0.0]), torch.tensor([0, 0]))])
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
    apart = torch.cat([torch.stack(found) - torch.stack(found).mean(0) for found in centers.values()])
    return within / rows + apart.T @ apart / len(apart)


def whitening(covariance: Tensor, shrink: float = SHRINK) -> tuple[Tensor, Tensor]:
    """The symmetric inverse root of a covariance and its inverse, both (dim, dim).

    >>> root, back = whitening(torch.diag(torch.tensor([4.0, 1.0])), shrink=0.0)
    >>> root.diagonal().tolist(), back.diagonal().tolist()
    ([0.5, 1.0], [2.0, 1.0])
    """
    size = covariance.diagonal().mean()
    even = size * torch.eye(len(covariance)).to(covariance)
    values, vectors = torch.linalg.eigh((1 - shrink) * covariance + shrink * even)
    deviation = values.clamp_min(torch.finfo(torch.float32).tiny).sqrt()
    return (vectors / deviation) @ vectors.T, (vectors * deviation) @ vectors.T
