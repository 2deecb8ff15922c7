"""AugMix (Hendrycks et al., ICLR 2020) as a way to train: three views of an image should agree."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.data.augmix import augmix
from sourceward.nn.backbones.preprocessing import denormalize as pixels
from sourceward.nn.backbones.preprocessing import normalize as normalise
from sourceward.training.finetune import FINETUNE_METHODS, Method
from sourceward.training.methods.draws import images

WEIGHT = 12.0
"""Of the consistency; the paper's."""


def jensen_shannon(logits: Tensor) -> Tensor:
    """Mean KL of each view's answer to the mean answer: (views, batch, classes) to a number."""
    log_p = logits.float().log_softmax(-1)
    log_mean = log_p.logsumexp(0) - math.log(len(log_p))
    return (log_p.exp() * (log_p - log_mean)).sum(-1).mean()


@FINETUNE_METHODS.register("augmix")
class AugMix(Method):
    """AugMix: cross-entropy on the image, and 12 times the Jensen-Shannon divergence among it and two
    AugMix views of it."""

    def loss(
        self,
        backbone: nn.Module,
        head: nn.Module,
        inputs: Any,
        label: Tensor,
        domain: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        inputs = images(inputs, "augmix")
        looks: Any = backbone.preprocessing
        plain = pixels(inputs, looks.mean, looks.std)
        views = [normalise(augmix(plain, generator=generator), looks.mean, looks.std) for _ in range(2)]
        logits = head(backbone(torch.cat([inputs, *(view.to(inputs) for view in views)])))
        logits = logits.unflatten(0, (3, -1))
        own = cross_entropy(logits[0], label, label_smoothing=self.settings.label_smoothing)
        return own + WEIGHT * jensen_shannon(logits)
