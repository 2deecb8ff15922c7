"""Tent: fully test-time adaptation by entropy minimization (Wang et al., ICLR 2021)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from sourceward.adaptation.base import ADAPTERS
from sourceward.adaptation.baselines.classifier import entropy, log_vote
from sourceward.adaptation.baselines.online import Online
from sourceward.adaptation.baselines.peer import Student, affine_student, latent_student, norm_student
from sourceward.nn import Network


@ADAPTERS.register("tent")
@dataclass(frozen=True)
class Tent(Online):
    """Tent: batch statistics, and the backbone's norm layers learn to be sure (Wang et al. 2021)."""

    reads: ClassVar[str] = "inputs"

    def student(self, network: Network) -> Student:
        return norm_student(network)

    def objective(self, student: Student) -> Callable[[Any, Tensor, Tensor], Tensor]:
        return lambda inputs, feature, logits: entropy(log_vote(logits)).mean()

    def _hint(self) -> str:
        return " Use 'tent_features' or 'tent_latent'."


@ADAPTERS.register("tent_features")
@dataclass(frozen=True)
class TentOnFeatures(Tent):
    """Tent on features: a scale and a shift of each feature learn to be sure."""

    reads: ClassVar[str] = "features"

    def student(self, network: Network) -> Student:
        return affine_student(network)


@ADAPTERS.register("tent_latent")
@dataclass(frozen=True)
class TentOnLatent(Tent):
    """Tent on z, as in the paper's table: the latent network learns to be sure."""

    reads: ClassVar[str] = "features"

    rate: float = 1e-4

    def student(self, network: Network) -> Student:
        return latent_student(network)
