"""Published ways to fine-tune the backbone, by name in `FINETUNE_METHODS`.

Weight averaging needs no method: `finetune.average` is the decay of a moving average of all weights, and
`finetune.average=0` switches it off.
"""

from sourceward.training.methods.augmix import AugMix
from sourceward.training.methods.mixing import CutMix, Mixup
from sourceward.training.methods.mixstyle import MixStyle
from sourceward.training.methods.rotation import Rotation

__all__ = ["AugMix", "CutMix", "MixStyle", "Mixup", "Rotation"]
