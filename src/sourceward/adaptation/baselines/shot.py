"""SHOT-IM: the information maximisation of SHOT (Liang, Hu & Feng, ICML 2020), online."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTERS
from sourceward.adaptation.baselines.classifier import entropy, log_vote
from sourceward.adaptation.baselines.online import Online
from sourceward.adaptation.baselines.peer import Student, backbone_student, linear_student
from sourceward.nn import Network


def information_maximisation(log_probability: Tensor) -> Tensor:
    """Each answer sure, all answers together diverse: mean entropy less the entropy of the mean.

    >>> sure_and_diverse = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).clamp_min(1e-30).log()
    >>> round(information_maximisation(sure_and_diverse).item(), 4)  # -log 2
    -0.6931
    """
    mean = log_probability.exp().mean(0)
    diversity = -(mean * mean.clamp_min(torch.finfo(mean.dtype).tiny).log()).sum()
    return entropy(log_probability).mean() - diversity


@ADAPTERS.register("shot_im")
@dataclass(frozen=True)
class ShotIM(Online):
    """SHOT-IM: the backbone learns answers that are sure and diverse, the classifier stays (Liang 2020)."""

    reads: ClassVar[str] = "inputs"

    rate: float = 1e-5

    def student(self, network: Network) -> Student:
        return backbone_student(network)

    def objective(self, student: Student) -> Callable[[Any, Tensor, Tensor], Tensor]:
        return lambda inputs, feature, logits: information_maximisation(log_vote(logits))

    def _hint(self) -> str:
        return " Use 'shot_im_features'."


@ADAPTERS.register("shot_im_features")
@dataclass(frozen=True)
class ShotIMOnFeatures(ShotIM):
    """SHOT-IM on features: a linear map in the backbone's place learns to be sure and diverse."""

    reads: ClassVar[str] = "features"

    rate: float = 1e-2

    def student(self, network: Network) -> Student:
        return linear_student(network)
