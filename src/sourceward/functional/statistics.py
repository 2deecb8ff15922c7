"""Statistics of source features: range, class centres d, principal components, covariance and whitening.

Whitening scales down directions in which a class varies within a source or between sources: shifts among the
sources resemble the shift to an unseen domain, so classifiers and energies should not rely on them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SHRINK = 0.3
"""Share of the covariance replaced by its mean variance: a few samples do not determine all directions."""

SMALLEST, LARGEST = 1e-15, 1e15
"""Range of feature values whose squares fit into float32."""


def class_centers(feature: Tensor, label: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mean feature and number of samples of each class: (sources, classes, dim) and (sources, classes).

    A class without samples has count 0 and a centre of zeros.

    Args:
        feature: (sources, batch, dim).
        label: (sources, batch) of class numbers.
        num_classes: number of classes.

    Example:
        >>> centers, count = class_centers(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[0, 0]]), 2)
        >>> centers.flatten().tolist(), count.flatten().tolist()
        ([2.0, 0.0], [2.0, 0.0])
    """
    member = torch.nn.functional.one_hot(label, num_classes).to(feature.dtype)
    count = member.sum(1)
    return member.mT @ feature / count.clamp_min(1).unsqueeze(-1), count


def principal_components(feature: Tensor, dim: int) -> Tensor:
    """The `dim` directions of greatest variance of (batch, wide) features, as columns: (wide, dim).

    Fewer than `dim` where the rows do not vary in as many: n rows vary in n - 1 directions at most.

    >>> principal_components(torch.tensor([[1.0, 0.1], [3.0, 0.0], [5.0, 0.1]]), 1).abs().round().flatten()
    tensor([1., 0.])
    """
    centred = feature.double() - feature.double().mean(0)
    if (
        len(centred) < centred.shape[1]
    ):  # the products of the rows are the smaller matrix: seconds, not minutes
        variance, weights = (values.flip(-1) for values in torch.linalg.eigh(centred @ centred.T))
        count = max(int((variance > 1e-12 * variance[0]).sum()), 1)
        directions = torch.nn.functional.normalize(centred.T @ weights[:, : min(dim, count)], dim=0)
    else:
        directions = torch.linalg.eigh(centred.T @ centred)[1].flip(1)[:, :dim]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    # The sign of an eigenvector is arbitrary; and only memory in one order gives the same bits when loaded.
    return (directions * largest.sign()).float().contiguous()


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


def value_range_problem(feature: np.ndarray, name: str = "X") -> tuple[str, str] | None:
    """Why features (rows, dim) of such a range cannot be learned from, and what to do; None if they can.

    >>> value_range_problem(np.array([[0.0], [1.0]]))
    >>> value_range_problem(np.array([[0.0], [1e30]]))
    ('Expected features whose squares fit into float32, but the range of X is 1e+30.', 'Rescale X.')
    """
    high, low = feature.max(0).astype(np.float64), feature.min(0).astype(np.float64)
    span = (high - low).max()
    if span == 0:
        return f"All rows of {name} are equal, so nothing can be learned.", "Check the feature extraction."
    if not SMALLEST < span < LARGEST:  # NaN, too
        reason = f"Expected features whose squares fit into float32, but the range of {name} is {span:.0e}."
        return reason, f"Rescale {name}."
    return None
