"""Training-time peers: other ways to fine-tune the backbone, by name in `FINETUNE_METHODS`.

Weight averaging needs none of its own: `finetune.average` is the decay of an exponential moving average of
all weights, which every method has; `finetune.average=0` is plain training.
"""

from sourceward.training.methods.augmix import AugMix
from sourceward.training.methods.mixing import CutMix, Mixup
from sourceward.training.methods.mixstyle import MixStyle
from sourceward.training.methods.rotation import Rotation

__all__ = ["AugMix", "CutMix", "MixStyle", "Mixup", "Rotation"]
