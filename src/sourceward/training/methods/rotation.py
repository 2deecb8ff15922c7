"""The training of TTT: test-time training by rotation prediction (Sun et al., ICML 2020).

Loss: cross-entropy of the class + cross-entropy of the rotation, which a second linear head on the same
features predicts among 0, 90, 180 and 270 degrees, one drawn for each image: as in the released code
(yueatsprograms/ttt_cifar_release), where the second head branches off earlier. The head is saved with the
backbone, so that the adapter `ttt` can train on a test sample.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.data.image_ops import rotate_quarters
from sourceward.nn.auxiliary import ROTATION
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Rows
from sourceward.training.methods.image_method import ImageMethod
from sourceward.training.needs import Needs


@FINETUNE_METHODS.register("rotation")
class Rotation(ImageMethod):
    """The training of TTT: classification and rotation prediction, with the same weight."""

    needs = Needs(images=True, networks="a rotation head", adapter="ttt")

    def __init__(self, settings: FineTuneSettings, backbone: Any, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        backbone.add_auxiliary(ROTATION, 4)

    def image_loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        images = batch.inputs
        rotations = torch.randint(4, (len(images),), generator=generator, device=images.device)
        class_loss = self.cross_entropy(head(backbone(images)), batch.label)
        logits = backbone.auxiliary[ROTATION](backbone(rotate_quarters(images, rotations)))
        return class_loss + cross_entropy(logits, rotations)
