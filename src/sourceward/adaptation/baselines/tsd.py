"""TSD: feature alignment and uniformity for test-time adaptation (Wang et al., CVPR 2023).

Loss: KL from the classifier's prediction to that of the prototypes of a support set, over the samples where
both predict the same class (test-time self-distillation). The paper's second term (local clustering among
neighbours, weight 0.1) is not included, and the classifier is not trained.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import normalize

from sourceward.adaptation.base import ADAPTERS
from sourceward.adaptation.baselines.online import Loss, Online
from sourceward.adaptation.baselines.support_set import SupportSet
from sourceward.adaptation.baselines.trainable import TrainableCopy
from sourceward.functional.aggregation import log_mixture


def self_distillation(feature: Tensor, prototypes: Tensor, log_probability: Tensor) -> Tensor:
    """Return the mean KL(classifier || prototypes) over the rows where both predict the same class.

    Args:
        feature: (batch, dim), which receives the gradient.
        prototypes: (classes, dim) of unit norm; the prototypes' logits are cosines.
        log_probability: (batch, classes), the classifier's prediction, without gradient.
    """
    teacher = log_probability.detach()
    student = (normalize(feature, dim=1) @ prototypes.T).log_softmax(-1)
    agree = (student.argmax(-1) == teacher.argmax(-1)).to(feature.dtype)
    divergence = (teacher.exp() * (teacher - student)).sum(-1)
    return (agree * divergence).sum() / agree.sum().clamp_min(1)


@ADAPTERS.register("tsd")
@dataclass(frozen=True)
class TSD(Online):
    """TSD: the backbone learns that prototypes of past features agree with the classifier (Wang 2023).

    The learning rate is the smaller of the two, 1e-4 and 1e-5, that the released code recommends.

    Args:
        keep: features of each class in the support set, 100 in the released code; 0 keeps all.
    """

    reads: ClassVar[str] = "inputs"
    trains: ClassVar[str] = "backbone"
    use_on_features: ClassVar[str] = "'tsd_features'"

    learning_rate: float = 1e-5
    keep: int = 100

    def make_loss(self, model: TrainableCopy) -> Loss:
        supports = SupportSet(model.network, self.keep)

        def loss(inputs: Any, feature: Tensor, logits: Tensor) -> Tensor:
            log_probability = log_mixture(logits)
            supports.add(feature, log_probability)
            return self_distillation(feature, supports.prototypes(), log_probability)

        return loss


@ADAPTERS.register("tsd_features")
@dataclass(frozen=True)
class TSDOnFeatures(TSD):
    """TSD on features: a linear map in place of the backbone learns to agree with the prototypes."""

    reads: ClassVar[str] = "features"
    trains: ClassVar[str] = "linear"

    learning_rate: float = 1e-3
