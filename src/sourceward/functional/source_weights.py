"""Learned selection of the best sources: how much each one's vote counts, from what can be seen of it.

A source's score is a weighted sum of five pieces of evidence, and votes weigh exp(score). The five weights
are the same for every source, so what pretend targets taught with one source fewer holds for all of them.
They start as votes by energy, and are learned on sources that play the target (`estimator/tuning.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

EVIDENCE = ("zscore before", "zscore after", "entropy", "agreement", "similarity")

BY_ENERGY = (-1.0, 0.0, 0.0, 0.0, 0.0)
"""Votes by energy, before anything is learned."""

PULL = 0.03
"""Weight of the squared distance to `BY_ENERGY`: a few pretend targets must not teach wild weights."""

RANGE = (-3.0, 6.0)
"""Surprise counts within these bounds: far out it says the same, and one sample must not outweigh many."""


class Evidence(NamedTuple):
    """The votes of one pretend target, and what can be seen of them."""

    seen: Tensor
    """(sources, batch, pieces)."""
    probability: Tensor
    """(sources, batch, classes)."""
    label: Tensor
    """(batch,)."""


def evidence(probability: Tensor, similarity: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """What can be seen of each vote, (sources, batch, 5).

    Args:
        probability: (sources, batch, classes), after the walk.
        similarity: (sources, batch), cosine to the source.
        before, after: (sources, batch), how the sample surprises the source's energy before and after it.
    """
    p = probability.double()
    entropy = -torch.special.xlogy(p, p).sum(-1)
    agreement = (p * p.mean(0)).sum(-1)
    pieces = [before.double().clamp(*RANGE), after.double().clamp(*RANGE), entropy, agreement, similarity]
    return torch.stack([piece.double() for piece in pieces], -1)


def score(seen: Tensor, source_weights: Sequence[float]) -> Tensor:
    """(sources, batch, 5) -> (sources, batch)."""
    return torch.stack([weight * piece for weight, piece in zip(source_weights, seen.unbind(-1))]).sum(0)


def learn_source_weights(trials: Sequence[Evidence]) -> tuple[float, ...]:
    """The weights under which the votes give the true classes most, over pretend targets alike.

    Example:
        >>> right, wrong = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.1, 0.9]])
        >>> seen = torch.zeros(2, 1, 5); seen[1, 0, 2] = 1.0  # the second is less certain, and wrong
        >>> source_weights = learn_source_weights([Evidence(seen, torch.stack([right, wrong]), torch.tensor([0]))])
        >>> source_weights[0], source_weights[2] < -0.1
        (-1.0, True)
    """
    start = torch.tensor(BY_ENERGY, dtype=torch.float64)
    with torch.enable_grad():
        weight = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = PULL * (weight - start).square().sum()
            for trial in trials:
                vote = torch.softmax(trial.seen.double().cpu() @ weight, 0).unsqueeze(-1)
                said = (vote * trial.probability.double().cpu()).sum(0)
                true = said.gather(1, trial.label.cpu().unsqueeze(1))
                value = value - true.clamp_min(1e-9).log().mean() / len(trials)
            value.backward()
            return value

        optimizer.step(loss)
    return tuple(round(number, 4) for number in weight.tolist())
