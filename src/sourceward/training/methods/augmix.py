"""AugMix as a training method (Hendrycks et al., ICLR 2020).

Loss: cross-entropy on the image + 12 JS(p(image), p(augmix_1), p(augmix_2)), the Jensen-Shannon divergence
of the predictions for the image and for two AugMix copies of it.
"""

import math
from typing import Any

import torch
from torch import Generator, Tensor, nn

from sourceward.data.augmix import augmix
from sourceward.nn.backbones.preprocessing import denormalize, normalize
from sourceward.training.finetune import FINETUNE_METHODS, Rows
from sourceward.training.methods.image_method import ImageMethod

CONSISTENCY_WEIGHT = 12.0
"""The paper's."""


def jensen_shannon(logits: Tensor) -> Tensor:
    """Return the mean KL of each copy's prediction from their mean: (copies, batch, classes) to a number."""
    log_p = logits.float().log_softmax(-1)
    log_mean = log_p.logsumexp(0) - math.log(len(log_p))
    return (log_p.exp() * (log_p - log_mean)).sum(-1).mean()


@FINETUNE_METHODS.register("augmix")
class AugMix(ImageMethod):
    """AugMix: cross-entropy, and 12 times the Jensen-Shannon divergence from two AugMix copies."""

    def image_loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        mean, std = backbone.preprocessing.mean, backbone.preprocessing.std
        plain = denormalize(batch.inputs, mean, std)
        copies = [normalize(augmix(plain, generator=generator), mean, std) for _ in range(2)]
        logits = head(backbone(torch.cat([batch.inputs, *(copy.to(batch.inputs) for copy in copies)])))
        logits = logits.unflatten(0, (3, -1))
        return self.cross_entropy(logits[0], batch.label) + CONSISTENCY_WEIGHT * jensen_shannon(logits)
