"""Test-time training by rotation (Sun et al., ICML 2020), its training: which way up is the image?

A second linear head on the same features names the quarter turns of an image. It is trained beside the
classifier and travels with the backbone, so that the adapter `ttt` can go on with it on a test sample.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.functional.rotate import rotate
from sourceward.nn.backbones.backbone import ROTATION
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Method
from sourceward.training.methods.draws import images


@FINETUNE_METHODS.register("rotation")
class Rotation(Method):
    """Test-time training by rotation: classification and naming quarter turns, with the same weight."""

    def __init__(self, settings: FineTuneSettings, backbone: Any, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        backbone.add_auxiliary(ROTATION, 4)

    def loss(
        self,
        backbone: nn.Module,
        head: nn.Module,
        inputs: Any,
        label: Tensor,
        domain: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        inputs = images(inputs, "rotation")
        turns = torch.randint(4, (len(inputs),), generator=generator, device=inputs.device)
        logits = head(backbone(inputs))
        own = cross_entropy(logits, label, label_smoothing=self.settings.label_smoothing)
        named = self.rotation(backbone)(backbone(rotate(inputs, turns)))
        return own + cross_entropy(named, turns)

    def rotation(self, backbone: Any) -> nn.Module:
        """The second head."""
        return backbone.auxiliary[ROTATION]
