"""Aggregation: from one prediction per source to one prediction. The paper's four rules, and two of ours.

Each rule takes per-source probabilities (sources, batch, classes), the cosine similarity of the sample to
each source, the energy z-score of the sample under each source and, if learned, the log weight of each source
(all (sources, batch)), and returns (batch, classes). The mixture of the classifiers within one source is here
as well.

Learned weights: a source's score is a weighted sum of five pieces of evidence, and its weight is proportional
to exp(score). The five coefficients are the same for every source, so coefficients learned with one source
held out apply to all sources. They start as aggregation by energy, and are learned in leave-one-domain-out
validation.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

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
    """Mean weighted by exp(score), learned on held-out sources: see `learn_source_weights`."""
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


EVIDENCE = ("zscore before", "zscore after", "entropy", "agreement", "similarity")

BY_ENERGY = (-1.0, 0.0, 0.0, 0.0, 0.0)
"""Coefficients that equal the aggregation `energy`, before anything is learned."""

REGULARIZATION = 0.03
"""Weight of the squared distance to `BY_ENERGY`: a few held-out sources are little data."""

ZSCORE_RANGE = (-3.0, 6.0)
"""Energy z-scores are clipped to this range, so that one sample cannot outweigh many."""


class Evidence(NamedTuple):
    """Predictions of the other sources on one held-out source, and the evidence about them."""

    values: Tensor
    """(sources, batch, 5)."""
    probability: Tensor
    """(sources, batch, classes)."""
    label: Tensor
    """(batch,)."""


def evidence(probability: Tensor, similarity: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Evidence about each source's prediction, in the order of `EVIDENCE`: (sources, batch, 5).

    Args:
        probability: (sources, batch, classes), of the adapted samples.
        similarity: (sources, batch), cosine to the source.
        before, after: (sources, batch), energy z-scores before and after adaptation.
    """
    p = probability.double()
    entropy = -torch.special.xlogy(p, p).sum(-1)
    agreement = (p * p.mean(0)).sum(-1)
    zscores = [before.double().clamp(*ZSCORE_RANGE), after.double().clamp(*ZSCORE_RANGE)]
    return torch.stack([value.double() for value in (*zscores, entropy, agreement, similarity)], -1)


def score(evidence: Tensor, source_weights: Sequence[float]) -> Tensor:
    """Weighted sum of the evidence: (sources, batch, 5) -> (sources, batch)."""
    return torch.stack([weight * value for weight, value in zip(source_weights, evidence.unbind(-1))]).sum(0)


def learn_source_weights(trials: Sequence[Evidence]) -> tuple[float, ...]:
    """Coefficients that maximise the likelihood of the true classes, the mean over held-out sources.

    Example:
        >>> right, wrong = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.1, 0.9]])
        >>> values = torch.zeros(2, 1, 5); values[1, 0, 2] = 1.0  # the second is less certain, and wrong
        >>> trial = Evidence(values, torch.stack([right, wrong]), torch.tensor([0]))
        >>> source_weights = learn_source_weights([trial])
        >>> source_weights[0], source_weights[2] < -0.1
        (-1.0, True)
    """
    start = torch.tensor(BY_ENERGY, dtype=torch.float64)
    with torch.enable_grad():
        weight = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = REGULARIZATION * (weight - start).square().sum()
            for trial in trials:
                share = torch.softmax(trial.values.double().cpu() @ weight, 0).unsqueeze(-1)
                mixture = (share * trial.probability.double().cpu()).sum(0)
                true = mixture.gather(1, trial.label.cpu().unsqueeze(1))
                value = value - true.clamp_min(1e-9).log().mean() / len(trials)
            value.backward()
            return value

        optimizer.step(loss)
    return tuple(round(number, 4) for number in weight.tolist())
