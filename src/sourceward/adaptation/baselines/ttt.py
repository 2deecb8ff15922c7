"""TTT: test-time training with self-supervision by rotation prediction (Sun et al., ICML 2020).

Loss: cross-entropy of a second head that predicts by which multiple of 90 degrees copies of the sample are
rotated. The head is trained with the classifier by `finetune.method=rotation`. The sample is predicted after
the updates, and the weights are restored.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sourceward.adaptation.base import ADAPTERS, Unsuitable, image_backbone
from sourceward.adaptation.baselines.episodic import Episodic
from sourceward.adaptation.baselines.trainable import TrainableCopy
from sourceward.data.augment import Augmentation, draw_boxes
from sourceward.data.image_ops import crop_and_hflip, rotate_quarters
from sourceward.nn import Network
from sourceward.nn.backbones.backbone import ROTATION, Backbone


@ADAPTERS.register("ttt")
@dataclass(frozen=True)
class TTT(Episodic):
    """TTT: for each sample alone, the backbone learns to predict its rotations (Sun et al. 2020).

    The learning rate is that of the released code, which takes 10 updates where weights are restored and 1
    where they are kept, and which trains the rotation head as well; here the head is fixed.
    """

    def check(self, network: Network) -> None:
        super().check(network)
        if ROTATION not in image_backbone(network).auxiliary:
            raise Unsuitable(
                "Test-time training needs a rotation head, but this model has none. "
                "Fit it with --set finetune.method=rotation."
            )

    def trainable(self, network: Network) -> TrainableCopy:
        model = super().trainable(network)
        image_backbone(model.network).auxiliary.requires_grad_(False)
        model.parameters = [parameter for parameter in model.parameters if parameter.requires_grad]
        return model

    def make_loss(
        self, model: TrainableCopy, image: Tensor, generator: torch.Generator
    ) -> Callable[[], Tensor]:
        backbone = image_backbone(model.network)
        return lambda: rotation_loss(backbone, image.expand(self.num_copies, -1, -1, -1), generator)


def rotation_loss(backbone: Backbone, images: Tensor, generator: torch.Generator) -> Tensor:
    """Return the loss of predicting random rotations of cropped and flipped images (batch, 3, side, side)."""
    rotations = torch.randint(4, (len(images),), generator=generator, device=images.device)
    boxes = draw_boxes(images, Augmentation(), generator)
    flipped = torch.rand(len(images), generator=generator, device=images.device) < 0.5
    images = crop_and_hflip(images, boxes, flipped, (images.shape[-2], images.shape[-1]))
    return cross_entropy(
        backbone.auxiliary[ROTATION](backbone(rotate_quarters(images, rotations))), rotations
    )
