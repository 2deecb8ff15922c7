"""Learned aggregation weights: how much each source counts for a sample, from evidence about its prediction.

A source's score is a weighted sum of five pieces of evidence, and aggregation weights are proportional to
exp(score). The five coefficients are the same for every source, so coefficients learned with one source held
out apply to all sources. They start as aggregation by energy, and are learned in leave-one-domain-out
validation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

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
