"""Mixup (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019): two images and both of their labels."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.training.finetune import FINETUNE_METHODS, Method
from sourceward.training.methods.draws import beta, images, shuffle

MIXUP_ALPHA = 0.2
"""The paper's for ImageNet, and DomainBed's."""
CUTMIX_ALPHA = 1.0
"""The paper's: the share is uniform."""


def mixed_cross_entropy(logits: Tensor, label: Tensor, other: Tensor, share: Tensor, smooth: float) -> Tensor:
    """share CE(label) + (1 - share) CE(other), mean over rows."""
    own = cross_entropy(logits, label, reduction="none", label_smoothing=smooth)
    others = cross_entropy(logits, other, reduction="none", label_smoothing=smooth)
    return (share * own + (1 - share) * others).mean()


def boxes(share: Tensor, height: int, width: int, generator: torch.Generator) -> Tensor:
    """A rectangle of area 1 - share in each image, its centre anywhere, cut at the border: (batch, 1, h, w),
    true inside."""
    side = (1 - share).sqrt()
    centre = torch.rand(2, len(share), generator=generator, device=share.device)
    inside = []
    for at, length in zip(centre, (height, width)):
        place = torch.arange(length, device=share.device) + 0.5
        inside.append((place - (at * length)[:, None]).abs() < (side * length / 2)[:, None])
    return (inside[0][:, :, None] & inside[1][:, None, :]).unsqueeze(1)


class Mixing(Method):
    """Each row with a random other row of the batch, whatever its source."""

    def mix(self, inputs: Tensor, other: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Mixed images, and the share of its own that each row keeps: (batch,)."""
        raise NotImplementedError

    def loss(
        self,
        backbone: nn.Module,
        head: nn.Module,
        inputs: Any,
        label: Tensor,
        domain: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        inputs = images(inputs, self.settings.method)
        order = shuffle(len(inputs), generator)
        mixed, share = self.mix(inputs, inputs[order], generator)
        return mixed_cross_entropy(
            head(backbone(mixed)), label, label[order], share, self.settings.label_smoothing
        )


@FINETUNE_METHODS.register("mixup")
class Mixup(Mixing):
    """Mixup: x = a x_i + (1 - a) x_j, and so the labels; a ~ Beta(0.2, 0.2) for each pair."""

    def mix(self, inputs: Tensor, other: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        share = beta(MIXUP_ALPHA, len(inputs), generator)
        return torch.lerp(other, inputs, share.to(inputs.dtype)[:, None, None, None]), share


@FINETUNE_METHODS.register("cutmix")
class CutMix(Mixing):
    """CutMix: a rectangle of another image, labels by area; the area's share is uniform."""

    def mix(self, inputs: Tensor, other: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        box = boxes(beta(CUTMIX_ALPHA, len(inputs), generator), inputs.shape[-2], inputs.shape[-1], generator)
        return torch.where(box, other, inputs), 1 - box.float().mean((1, 2, 3))
