"""Mixup (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019): mix two images and their labels.

Loss: a CE(label_i) + (1 - a) CE(label_j) of the mixture of images i and j, where a is the share of image i.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from sourceward.training.finetune import FINETUNE_METHODS, Rows
from sourceward.training.methods.image_method import ImageMethod
from sourceward.training.methods.random_draws import beta, permutation

MIXUP_ALPHA = 0.2
"""The paper's for ImageNet, and DomainBed's."""
CUTMIX_ALPHA = 1.0
"""The paper's: the share is uniform."""


def random_boxes(share: Tensor, height: int, width: int, generator: Generator) -> Tensor:
    """Draw a rectangle of area 1 - share for each image, clipped at the border.

    Returns a mask (batch, 1, height, width) that is true inside.
    """
    side = (1 - share).sqrt()
    centres = torch.rand(2, len(share), generator=generator, device=share.device)
    inside = []
    for centre, length in zip(centres, (height, width)):
        position = torch.arange(length, device=share.device) + 0.5
        inside.append((position - (centre * length)[:, None]).abs() < (side * length / 2)[:, None])
    return (inside[0][:, :, None] & inside[1][:, None, :]).unsqueeze(1)


class Mixing(ImageMethod):
    """A method that mixes each image with a random other image of the batch, of any source."""

    def mix(self, images: Tensor, others: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the mixed images, and the share of `images` in each: (batch,)."""
        raise NotImplementedError

    def image_loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        order = permutation(len(batch.inputs), generator)
        mixed, share = self.mix(batch.inputs, batch.inputs[order], generator)
        logits = head(backbone(mixed))
        own = self.cross_entropy(logits, batch.label, reduction="none")
        other = self.cross_entropy(logits, batch.label[order], reduction="none")
        return (share * own + (1 - share) * other).mean()


@FINETUNE_METHODS.register("mixup")
class Mixup(Mixing):
    """Mixup: x = a x_i + (1 - a) x_j, labels alike, with a ~ Beta(0.2, 0.2) for each pair."""

    def mix(self, images: Tensor, others: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        share = beta(MIXUP_ALPHA, len(images), generator)
        return torch.lerp(others, images, share.to(images.dtype)[:, None, None, None]), share


@FINETUNE_METHODS.register("cutmix")
class CutMix(Mixing):
    """CutMix: a rectangle is replaced by that of another image, labels by area; its area is uniform."""

    def mix(self, images: Tensor, others: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        share = beta(CUTMIX_ALPHA, len(images), generator)
        box = random_boxes(share, images.shape[-2], images.shape[-1], generator)
        return torch.where(box, others, images), 1 - box.float().mean((1, 2, 3))
