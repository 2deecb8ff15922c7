"""The classifier that every baseline starts from: the network's own, without adaptation.

Every source's head (a pooled head has two) and the LDA head give logits; the prediction is the mean of their
probabilities, as for the adapter `none`. Baselines that train by gradients differentiate this mean, so that
without an update they equal `none`. Baselines that need one weight vector per class (T3A, TSD) take the mean
of the heads' weight vectors.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sourceward.nn import Network
from sourceward.nn.heads import LinearHead, PrototypeHead
from sourceward.nn.network import CLASSIFIER_WEIGHT


def encoder(network: Network) -> Callable[[Any], Tensor]:
    """Return the map from inputs to rescaled features (batch, dim); the backbone runs in bfloat16 on CUDA."""
    kind = network.scale.device.type

    def encode(inputs: Any) -> Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            return network.features(inputs).float()

    return encode


def ensemble_logits(network: Network, feature: Tensor) -> Tensor:
    """Return the logits of all classifiers: (batch, dim) to (classifiers, sources, batch, classes).

    All entries count alike in the mean: the LDA head's weight is expressed by repeating rows.
    """
    logits = network.classifier_logits(feature)
    if lda_weight := int(network.lda_weight):
        weight, bias = network.lda()
        common = math.gcd(CLASSIFIER_WEIGHT, lda_weight)
        lda_logits = (feature @ weight.T + bias).expand(lda_weight // common, *logits.shape[1:])
        logits = torch.cat([logits.repeat(CLASSIFIER_WEIGHT // common, 1, 1, 1), lda_logits])
    return logits


def entropy(log_probability: Tensor) -> Tensor:
    """Return the entropy of each distribution: (..., classes) to (...)."""
    return -(log_probability.exp() * log_probability).sum(-1)


def mean_entropy(log_probability: Tensor) -> Tensor:
    """Return the entropy of the mean distribution over the first axis: (n, ..., classes) to (...).

    >>> confident_but_different = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
    >>> round(mean_entropy(confident_but_different).item(), 4)
    0.6931
    """
    mean = log_probability.exp().mean(0)
    return -(mean * mean.clamp_min(torch.finfo(mean.dtype).tiny).log()).sum(-1)


def classifier_energy(logits: Tensor) -> Tensor:
    """Return E(x) = -log sum exp of the logits, averaged over classifiers and sources: (batch,)."""
    return -logits.logsumexp(-1).mean((0, 1))


@torch.no_grad()
def class_weights(network: Network) -> Tensor:
    """Return a weight vector w_c per class with logits = x . w_c / sqrt(dim) up to a bias: (classes, dim).

    Prototype heads: the posterior means, averaged over sources and classifiers. Linear head: its weights,
    averaged over sources. A head that is not linear in x: the class centres, averaged over sources.
    """
    if isinstance(network.head, LinearHead):
        return network.head.weight.detach().mean(0).mT * math.sqrt(network.dim)
    posterior = network.posterior(network.centers)
    if posterior is None or not isinstance(network.head, PrototypeHead):
        return network.centers.mean(0)
    weights = posterior.mean.mean(0)
    if not network.head.pooled:
        return weights
    pooled = network.posterior(network.centers.mean(0))
    assert pooled is not None
    weights = (weights + pooled.mean) / 2
    learned, lda_weight = 2 * CLASSIFIER_WEIGHT, int(network.lda_weight)
    lda = network.lda()[0] * math.sqrt(network.dim)
    return (learned * weights + lda_weight * lda) / (learned + lda_weight)
