"""The training of the domain-adaptive classifier (Dubey, Ramanathan, Pentland & Mahajan, CVPR 2021).

A second network, a copy of the backbone at its start, embeds domains: the prototype of a domain is the mean
embedding of some of its samples, and the others are classified among prototypes by their squared distance
(Snell et al., NeurIPS 2017). The classifier reads a feature and the prototype of the sample's domain. The
adapter `domain_adaptive` takes the prototype of the target from a batch of its samples.

Loss: cross-entropy of the classifier + that of the domain. Widths, layers and the share of a batch that gives
the prototypes are those of the first author's code (abhimanyudubey/DomainBed). There the embedding is trained
beforehand, at a hundredth of the classifier's learning rate, also on mixtures of two domains; prototypes are
means over many batches; and a distance between the features of domains (MMD) may be added. Here both are
trained together, the embedding by the second loss alone, and prototypes are those of the batch. The linear
head reads features without a gradient: source validation selects by it.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.nn.auxiliary import DOMAIN_EMBEDDING
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Method, Rows
from sourceward.training.needs import Needs

SUPPORT = 0.2
"""Share of a batch that gives the prototypes: that of the first author's code."""


def prototype_loss(embedding: Tensor) -> Tensor:
    """Return the loss of classifying samples by the nearest domain prototype.

    Args:
        embedding: (sources, batch, dim); the first `SUPPORT` of each source give its prototype, the others
            are classified. A single sample gives the prototype and is classified.
    """
    sources, batch, _ = embedding.shape
    support = max(1, int(SUPPORT * batch))
    queries = embedding[:, min(support, batch - 1) :]
    distance = (queries.flatten(0, 1).unsqueeze(1) - embedding[:, :support].mean(1)).square().sum(-1)
    domain = torch.arange(sources, device=embedding.device).repeat_interleave(queries.shape[1])
    return cross_entropy(-distance, domain)


@FINETUNE_METHODS.register("domain_embedding")
class DomainEmbedding(Method):
    """Domain-adaptive classifier: it reads a feature and an embedding of the sample's domain."""

    needs = Needs(
        sources=2, networks="a second backbone that embeds domains, a classifier", adapter="domain_adaptive"
    )

    def __init__(self, settings: FineTuneSettings, backbone: Any, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        self.sources = sources
        backbone.add_auxiliary(DOMAIN_EMBEDDING, classes)

    def loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        feature, adaptive = backbone(batch.inputs), backbone.auxiliary[DOMAIN_EMBEDDING]
        embedding = adaptive.embed(batch.inputs).unflatten(0, (self.sources, -1))
        prototype = embedding.detach().mean(1)[batch.domain]
        smoothing = self.settings.label_smoothing
        task = cross_entropy(adaptive(feature, prototype), batch.label, label_smoothing=smoothing)
        probe = cross_entropy(head(feature.detach()), batch.label)
        return task + prototype_loss(embedding) + probe
