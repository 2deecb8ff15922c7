"""The vote of several classifiers: the mean of their probabilities."""

import math

from torch import Tensor


def vote(logits: Tensor, share: Tensor) -> Tensor:
    """(..., voters, classes) logits to (..., classes) probabilities.

    Args:
        logits: of each voter.
        share: (voters, 1), how much each counts; they sum to 1.
    """
    return (logits.softmax(-1) * share).sum(-2)


def log_vote(logits: Tensor) -> Tensor:
    """Log of the mean probability over voters and sources, finite where a probability is too small to be:
    (voters, sources, batch, classes) to (batch, classes)."""
    each = logits.log_softmax(-1).flatten(0, 1)
    return each.logsumexp(0) - math.log(len(each))
