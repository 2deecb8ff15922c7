"""TSD: feature alignment and uniformity for test-time adaptation (Wang et al., CVPR 2023).

Its test-time self-distillation: prototypes from a memory of the surest features, and a loss that brings the
prototypes' answer to the classifier's on the rows where the two agree. Its second, smaller term (local
clustering among neighbours, weight 0.1) is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import normalize

from sourceward.adaptation.base import ADAPTERS
from sourceward.adaptation.baselines.classifier import log_vote
from sourceward.adaptation.baselines.online import Online
from sourceward.adaptation.baselines.peer import Student, at_least, backbone_student, linear_student
from sourceward.adaptation.baselines.supports import Supports
from sourceward.nn import Network


def self_distillation(feature: Tensor, prototypes: Tensor, log_probability: Tensor) -> Tensor:
    """Mean of KL(classifier || prototypes) over the rows where both name the same class.

    Args:
        feature: (batch, dim), where the gradient goes.
        prototypes: (classes, dim) of unit length; the prototypes' logits are cosines.
        log_probability: (batch, classes), the classifier's answer, taken as given.
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

    Args:
        keep: features of each class in the memory; 0 keeps all.
    """

    reads: ClassVar[str] = "inputs"

    rate: float = 1e-5
    keep: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "keep")

    def student(self, network: Network) -> Student:
        return backbone_student(network)

    def objective(self, student: Student) -> Callable[[Any, Tensor, Tensor], Tensor]:
        memory = Supports(student.network, self.keep)

        def loss(inputs: Any, feature: Tensor, logits: Tensor) -> Tensor:
            answer = log_vote(logits)
            memory.add(feature, answer)
            return self_distillation(feature, memory.prototypes(), answer)

        return loss

    def _hint(self) -> str:
        return " Use 'tsd_features'."


@ADAPTERS.register("tsd_features")
@dataclass(frozen=True)
class TSDOnFeatures(TSD):
    """TSD on features: a linear map in the backbone's place learns to agree with prototypes."""

    reads: ClassVar[str] = "features"

    rate: float = 1e-3

    def student(self, network: Network) -> Student:
        return linear_student(network)
