"""The classifier that the peers start from: the network's own, unadapted.

It answers as the adapter `none` does: every source's head (twice for a pooled head) gives logits, each is
turned into probabilities, and the probabilities are averaged. Peers with gradients adapt this vote, so that
without an update they are `none`. Peers that need a weight vector for each class (T3A, TSD) take the average
of those that the heads multiply the feature with.
"""

import math

import torch
from torch import Tensor

from sourceward.functional.voting import log_vote
from sourceward.nn import Network
from sourceward.nn.heads import LinearHead, PrototypeHead
from sourceward.nn.network import VOICES


def voter_logits(network: Network, feature: Tensor) -> Tensor:
    """(batch, dim) to (voters, sources, batch, classes); all voters count alike, so some are there often."""
    logits = network.voter_logits(feature)
    if voices := int(network.lda_weight):
        weight, bias = network.lda()
        said, common = feature @ weight.T + bias, math.gcd(VOICES, voices)
        said = said.expand(voices // common, *logits.shape[1:])
        logits = torch.cat([logits.repeat(VOICES // common, 1, 1, 1), said])
    return logits


def entropy(log_probability: Tensor) -> Tensor:
    """(..., classes) to (...)."""
    return -(log_probability.exp() * log_probability).sum(-1)


def classifier_energy(logits: Tensor) -> Tensor:
    """The energy a classifier defines, -log sum exp of its logits, mean over voters and sources: (batch,)."""
    return -logits.logsumexp(-1).mean((0, 1))


@torch.no_grad()
def class_weights(network: Network) -> Tensor:
    """A vector for each class such that logits = x . w_c / sqrt(dim), up to a bias: (classes, dim).

    Prototype heads: the posterior means, averaged over sources and voters. Linear head: its rows. A head that
    is no linear map of x: the class centres, averaged over sources.
    """
    if isinstance(network.head, LinearHead):
        return network.head.out.weight.detach() * math.sqrt(network.dim)
    own = network.posterior(network.centers)
    if own is None or not isinstance(network.head, PrototypeHead):
        return network.centers.mean(0)
    weights = own.mean.mean(0)
    if not network.head.pooled:
        return weights
    pooled = network.posterior(network.centers.mean(0))
    assert pooled is not None
    weights = (weights + pooled.mean) / 2
    learned, voices = 2 * VOICES, int(network.lda_weight)
    centers = network.lda()[0] * math.sqrt(network.dim)
    return (learned * weights + voices * centers) / (learned + voices)


__all__ = ["class_weights", "classifier_energy", "entropy", "log_vote", "voter_logits"]
