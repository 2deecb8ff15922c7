"""The training of the domain-adaptive classifier (Dubey, Ramanathan, Pentland & Mahajan, CVPR 2021).

A second network, a copy of the backbone at its start, embeds domains: the prototype of a domain is the mean
embedding of some of its samples, and the others are classified among prototypes by their squared distance
(Snell et al., NeurIPS 2017). The classifier reads a feature and the prototype of the sample's domain. The
adapter `domain_adaptive` takes the prototype of the target from a batch of its samples.

Loss: cross-entropy of the classifier + that of the domain. The embedding is trained by the second alone, as
in the paper, where it is trained beforehand; here both are trained together. Their code was not found, and
of the paper only the abstract was read for this: widths, halves of a batch and weights are ours. The linear
head reads features without a gradient: source validation selects by it.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.nn.auxiliary import DOMAIN_EMBEDDING
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Method
from sourceward.training.needs import Needs


def prototype_loss(embedding: Tensor) -> Tensor:
    """Return the loss of classifying samples by the nearest domain prototype.

    Args:
        embedding: (sources, batch, dim); the first half of each source gives its prototype, the second half
            is classified.
    """
    sources, half = len(embedding), (embedding.shape[1] + 1) // 2
    prototypes = embedding[:, :half].mean(1)
    queries = embedding[:, -half:].flatten(0, 1)
    distance = (queries.unsqueeze(1) - prototypes).square().sum(-1)
    domain = torch.arange(sources, device=embedding.device).repeat_interleave(half)
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

    def loss(
        self,
        backbone: Any,
        head: nn.Module,
        inputs: Any,
        label: Tensor,
        domain: Tensor,
        generator: Generator,
    ) -> Tensor:
        feature, adaptive = backbone(inputs), backbone.auxiliary[DOMAIN_EMBEDDING]
        embedding = adaptive.embed(inputs).unflatten(0, (self.sources, -1))
        prototype = embedding.detach().mean(1)[domain]
        smoothing = self.settings.label_smoothing
        task = cross_entropy(adaptive(feature, prototype), label, label_smoothing=smoothing)
        probe = cross_entropy(head(feature.detach()), label)
        return task + prototype_loss(embedding) + probe
