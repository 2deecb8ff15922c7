"""Aggregation: from one prediction per source to one prediction. The paper's four rules, and two of ours.

Each rule takes per-source probabilities (sources, batch, classes), the cosine similarity of the sample to
each source, the energy z-score of the sample under each source and, if learned, the log weight of each source
(all (sources, batch)), and returns (batch, classes). The mixture of the classifiers within one source is here
as well.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward._util.registry import Registry


class Aggregation(Protocol):
    def __call__(
        self, probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None
    ) -> Tensor: ...


AGGREGATIONS: Registry[Aggregation] = Registry("aggregation")


@AGGREGATIONS.register("mean")
def mean(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """Mean over the sources: the paper's ensemble."""
    return probability.mean(0)


@AGGREGATIONS.register("closest")
def closest(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """The source whose mean has the largest cosine similarity to the sample."""
    return _take(probability, similarity.argmax(0))


@AGGREGATIONS.register("cosine")
def cosine(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """Mean weighted by 1 + cosine similarity, which is never negative."""
    weight = (1 + similarity).clamp_min(torch.finfo(similarity.dtype).eps)
    weight = weight / weight.sum(0, keepdim=True)
    return (weight.unsqueeze(-1) * probability).sum(0)


@AGGREGATIONS.register("confident")
def confident(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """The source with the largest top probability."""
    return _take(probability, probability.amax(-1).argmax(0))


@AGGREGATIONS.register("energy")
def energy(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """Mean weighted by exp(-zscore): sources whose energy of the unadapted sample is low weigh more.

    Energies are standardised by those of each source's own samples: see `functional.calibration`.
    """
    return _weighted(probability, -zscore)


@AGGREGATIONS.register("learned")
def learned(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """Mean weighted by exp(score), learned on held-out sources: see `functional.source_weights`."""
    if score is None:
        raise InputError("This model has no learned source weights. Fit it with aggregation='learned'.")
    return _weighted(probability, score)


def select_sources(sources: Sequence[int], *values: Tensor) -> list[Tensor]:
    """Rows `sources` of values (sources, batch, ...), without a transfer from the host."""
    return [torch.stack([value[source] for source in sources]) for value in values]


def cosine_to_sources(feature: Tensor, source_center: Tensor) -> Tensor:
    """Cosine of each sample to each source's mean: (batch, dim), (sources, dim) -> (sources, batch)."""
    return torch.nn.functional.cosine_similarity(feature.unsqueeze(0), source_center.unsqueeze(1), dim=-1)


def mix_classifiers(logits: Tensor, weight: Tensor) -> Tensor:
    """Probabilities of a weighted mixture of classifiers: (..., classifiers, classes) -> (..., classes).

    Args:
        logits: of each classifier.
        weight: (classifiers, 1), summing to 1.
    """
    return (logits.softmax(-1) * weight).sum(-2)


def log_mixture(logits: Tensor) -> Tensor:
    """Log of the mean probability over classifiers and sources, finite where that probability underflows:
    (classifiers, sources, batch, classes) -> (batch, classes)."""
    each = logits.log_softmax(-1).flatten(0, 1)
    return each.logsumexp(0) - math.log(len(each))


def _weighted(probability: Tensor, score: Tensor) -> Tensor:
    """Mean weighted by exp(score)."""
    # In double: the last bit of a row must not depend on the number of rows in the batch.
    weight = torch.softmax(score.double(), 0)
    return (weight.unsqueeze(-1) * probability).sum(0).to(probability.dtype)


def _take(probability: Tensor, source: Tensor) -> Tensor:
    """Row b of source `source[b]`."""
    return probability[source, torch.arange(len(source), device=source.device)]
