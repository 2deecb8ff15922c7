"""Tent: fully test-time adaptation by entropy minimization (Wang et al., ICLR 2021).

Loss: mean over the batch of the entropy H(p(y|x)).
"""

from dataclasses import dataclass
from typing import ClassVar

from sourceward.adaptation.base import ADAPTERS
from sourceward.adaptation.baselines.classifier import entropy
from sourceward.adaptation.baselines.online import Loss, Online
from sourceward.adaptation.baselines.trainable import TrainableCopy
from sourceward.functional.aggregation import log_mixture


@ADAPTERS.register("tent")
@dataclass(frozen=True)
class Tent(Online):
    """Tent: norm layers minimise the entropy of predictions, with batch statistics (Wang et al. 2021).

    The learning rate 1e-3 with one update per batch is that of the released code.
    """

    reads: ClassVar[str] = "inputs"
    trains: ClassVar[str] = "norm_layers"
    use_on_features: ClassVar[str] = "'tent_features' or 'tent_latent'"

    def make_loss(self, model: TrainableCopy) -> Loss:
        return lambda inputs, feature, logits: entropy(log_mixture(logits)).mean()


@ADAPTERS.register("tent_features")
@dataclass(frozen=True)
class TentOnFeatures(Tent):
    """Tent on features: a scale and a shift of each feature minimise the entropy of predictions."""

    reads: ClassVar[str] = "features"
    trains: ClassVar[str] = "affine"


@ADAPTERS.register("tent_latent")
@dataclass(frozen=True)
class TentOnLatent(Tent):
    """Tent on z, as in the paper's table: the latent network minimises the entropy of predictions."""

    reads: ClassVar[str] = "features"
    trains: ClassVar[str] = "latent"

    learning_rate: float = 1e-4
