"""SHOT-IM: the information maximisation of SHOT (Liang, Hu & Feng, ICML 2020), online.

Loss: mean of H(p(y|x)) over the batch, minus H of the batch's mean prediction. SHOT's pseudo-labels are not
part of SHOT-IM.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sourceward.adaptation.base import ADAPTERS
from sourceward.adaptation.baselines.classifier import entropy, mean_entropy
from sourceward.adaptation.baselines.online import Loss, Online
from sourceward.adaptation.baselines.trainable import TrainableCopy
from sourceward.functional.aggregation import log_mixture


def information_maximisation(log_probability: Tensor) -> Tensor:
    """Return the mean entropy minus the entropy of the mean, of predictions (batch, classes).

    >>> import torch
    >>> certain_and_diverse = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).clamp_min(1e-30).log()
    >>> round(information_maximisation(certain_and_diverse).item(), 4)  # -log 2
    -0.6931
    """
    diversity = mean_entropy(log_probability)
    return entropy(log_probability).mean() - diversity


@ADAPTERS.register("shot_im")
@dataclass(frozen=True)
class ShotIM(Online):
    """SHOT-IM: the backbone learns certain and diverse predictions, the classifier is fixed (Liang 2020).

    The learning rate is the smaller of the two, 1e-4 and 1e-5, that the released code of TSD recommends; that
    code includes an online SHOT-IM, whereas SHOT itself trains for epochs.
    """

    reads: ClassVar[str] = "inputs"
    trains: ClassVar[str] = "backbone"
    use_on_features: ClassVar[str] = "'shot_im_features'"

    learning_rate: float = 1e-5

    def make_loss(self, model: TrainableCopy) -> Loss:
        return lambda inputs, feature, logits: information_maximisation(log_mixture(logits))


@ADAPTERS.register("shot_im_features")
@dataclass(frozen=True)
class ShotIMOnFeatures(ShotIM):
    """SHOT-IM on features: a linear map in place of the backbone learns certain and diverse predictions."""

    reads: ClassVar[str] = "features"
    trains: ClassVar[str] = "linear"

    learning_rate: float = 1e-2
