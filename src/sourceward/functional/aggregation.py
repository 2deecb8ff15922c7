"""From one answer per source to one answer: the four aggregations of the paper, and two of ours.

Each takes per-source probabilities (sources, batch, classes), the cosine similarity of the sample to each
source, how surprised each source's energy is by it and, where that was learned, the score of each vote (all
(sources, batch)), and returns (batch, classes).
"""

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
    """Every source votes with the same weight: the paper's ensemble."""
    return probability.mean(0)


@AGGREGATIONS.register("closest")
def closest(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """The source whose centre is nearest by cosine decides alone."""
    return _take(probability, similarity.argmax(0))


@AGGREGATIONS.register("cosine")
def cosine(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """Sources vote with weights proportional to 1 + cosine, which is never negative."""
    weight = (1 + similarity).clamp_min(torch.finfo(similarity.dtype).eps)
    weight = weight / weight.sum(0, keepdim=True)
    return (weight.unsqueeze(-1) * probability).sum(0)


@AGGREGATIONS.register("confident")
def confident(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """The source with the largest top probability decides alone."""
    return _take(probability, probability.amax(-1).argmax(0))


@AGGREGATIONS.register("energy")
def energy(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """The less a source's energy is surprised by the sample as it came, the more it counts: exp(-zscore).

    Energies are on the scale of each source's own samples: see `functional.calibration`.
    """
    return _weighted(probability, -zscore)


@AGGREGATIONS.register("learned")
def learned(probability: Tensor, similarity: Tensor, zscore: Tensor, score: Tensor | None = None) -> Tensor:
    """Sources vote with weights that pretend targets have taught, exp(score): see `functional.source_weights`."""
    if score is None:
        raise InputError(
            "This model has not learned which sources to source_weights. Fit it with aggregation='learned'."
        )
    return _weighted(probability, score)


def only(sources: Sequence[int], *values: Tensor) -> list[Tensor]:
    """Of values (sources, batch, ...), those of some sources, by number; nothing comes from the host."""
    return [torch.stack([value[source] for source in sources]) for value in values]


def cosine_to_sources(feature: Tensor, source_center: Tensor) -> Tensor:
    """Cosine of each sample to each source's mean: (batch, dim), (sources, dim) -> (sources, batch)."""
    return torch.nn.functional.cosine_similarity(feature.unsqueeze(0), source_center.unsqueeze(1), dim=-1)


def _weighted(probability: Tensor, score: Tensor) -> Tensor:
    """Votes weigh exp(score)."""
    # In double: a row's last bit must not depend on how many rows stand beside it.
    weight = torch.softmax(score.double(), 0)
    return (weight.unsqueeze(-1) * probability).sum(0).to(probability.dtype)


def _take(probability: Tensor, source: Tensor) -> Tensor:
    """Row b of source `source[b]`."""
    return probability[source, torch.arange(len(source), device=source.device)]
