"""Fit class means and a covariance to unlabelled samples of a domain; propagate predictions to neighbours.

This is LDA of the domain itself: its labels are predictions, its prior the class centres of the sources plus
the shift that all samples have in common.
"""

from typing import NamedTuple

import numpy as np

SHARE = 0.8
"""Weight of the logits of LDA beside the given log-probabilities."""

PRIOR = 20.0
"""Samples that the sources' centre of a class counts for."""

SETTLED = 300.0
"""Samples at which covariance and neighbours have half of their largest weight, one half."""

ROUNDS, SPREADS, NEIGHBOURS = 3, 15, 10
"""Of fitting to its own predictions; of propagation; and the neighbours of a sample."""


class DomainFit(NamedTuple):
    """What was fitted to the samples of a domain."""

    mean: np.ndarray
    """(classes, dim)."""
    metric: np.ndarray
    """(dim, dim): inverse of the covariance within classes, in units of its mean variance."""
    probability: np.ndarray
    """(n, classes) of the samples, after propagation."""


def fit_domain(feature: np.ndarray, probability: np.ndarray, center: np.ndarray) -> DomainFit:
    """Fit to whitened features (n, dim), their probabilities (n, classes) and the sources' class centres."""
    count, dim = feature.shape
    prior = center + (feature - probability @ center).sum(0) / (count + PRIOR)
    found, metric, share = probability, np.eye(dim), _share(count)
    for number in range(ROUNDS):
        weight = found**2
        mean = (weight.T @ feature + PRIOR * prior) / (weight.sum(0)[:, None] + PRIOR)
        if number:  # predictions without state are too uncertain for a covariance
            rest = feature - found @ mean
            covariance = rest.T @ rest
            unit = max(np.trace(covariance) / dim, np.finfo(np.float64).tiny)
            metric = np.linalg.inv(share * covariance / unit + (1 - share) * np.eye(dim))
        found = lda_probability(feature, probability, mean, metric)
    return DomainFit(mean, metric, _propagated(unit_rows(feature), found))


def lda_probability(
    feature: np.ndarray, probability: np.ndarray, mean: np.ndarray, metric: np.ndarray
) -> np.ndarray:
    """Mix the logits of LDA, (n, dim) -> (n, classes), with given probabilities."""
    middle = mean.mean(0)
    own = (feature - middle) @ (metric @ unit_rows(mean - middle).T)
    logit = (1 - SHARE) * np.log(probability + 1e-12) + SHARE * own
    power = np.exp(logit - logit.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


def near(similarity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of the largest similarities of each row, and their weights: the cube, 0 where it is negative."""
    place = np.argpartition(-similarity, NEIGHBOURS, 1)[:, :NEIGHBOURS]
    return place, np.maximum(np.take_along_axis(similarity, place, 1), 0) ** 3


def beside_neighbours(own: np.ndarray, similarity: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Mix predictions (n, classes) with those of the nearest of m others: (n, m), (m, classes)."""
    if len(others) <= NEIGHBOURS:
        return own
    place, weight = near(similarity)
    total, share = weight.sum(1, keepdims=True), _share(len(others))
    mixed = (weight[:, :, None] * others[place]).sum(1) / np.maximum(total, 1e-12)
    return np.where(total > 0, (1 - share) * own + share * mixed, own)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _share(count: int) -> float:
    return 0.5 * count / (count + SETTLED)


def _propagated(unit: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Predictions mixed with those of neighbours, and of samples whose neighbour one is."""
    count = len(own)
    if count <= NEIGHBOURS + 1:
        return own
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -1)
    place, weight = near(similarity)
    link = np.zeros_like(similarity)
    np.put_along_axis(link, place, weight, 1)
    link += link.T
    total, share, found = link.sum(1, keepdims=True), _share(count), own
    link /= np.maximum(total, 1e-12)
    for _ in range(SPREADS):
        found = np.where(total > 0, share * (link @ found) + (1 - share) * own, own)
    return found
