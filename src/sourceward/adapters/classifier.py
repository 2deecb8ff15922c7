"""The classifier that the peers start from: the network's own, unadapted.

It answers as the adapter `none` does: every source's head (twice for a pooled head) gives logits, each is
turned into probabilities, and the probabilities are averaged. Peers with gradients adapt this vote, so that
without an update they are `none`. Peers that need a weight vector for each class (T3A, TSD) take the average
of those that the heads multiply the feature with.
"""

import math

import torch
from torch import Tensor

from sourceward.nn import Network
from sourceward.nn.heads import LinearHead, PrototypeHead


def voter_logits(network: Network, feature: Tensor) -> Tensor:
    """(batch, dim) to (voters, sources, batch, classes); a pooled head has two voters or more."""
    start = feature.expand(network.sources, *feature.shape)
    prior, own = network.prior(start), network.posterior(network.centers)
    latent = None if prior is None else prior.mean
    logits = [network.head(start, latent, None if own is None else own.mean)]
    if network.head.pooled:
        pooled = network.posterior(network.centers.mean(0).expand_as(network.centers))
        logits.append(network.head(start, latent, None if pooled is None else pooled.mean))
    if voices := int(network.voices):
        weight, bias = network.discriminant()
        logits += [start @ weight.T + bias] * voices
    return torch.stack(logits)


def log_vote(logits: Tensor) -> Tensor:
    """Log of the mean probability over voters and sources: (batch, classes)."""
    each = logits.log_softmax(-1).flatten(0, 1)
    return each.logsumexp(0) - math.log(len(each))


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
    voices = int(network.voices)
    return (2 * weights + voices * network.discriminant()[0] * math.sqrt(network.dim)) / (2 + voices)
