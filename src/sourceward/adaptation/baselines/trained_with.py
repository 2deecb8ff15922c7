"""Adapters that classify by a network that was fine-tuned with the backbone, beside its features.

Single-sample generalization (Xiao et al., ICLR 2022): each sample gets a classifier of its own, generated
from the sample and the class centres of the sources. The domain-adaptive classifier (Dubey et al., CVPR 2021)
reads a feature and the embedding of its domain, the mean over a batch of the target's samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTERS, Unsuitable, inner_backbone
from sourceward.adaptation.baselines.base import Baseline, BatchPrediction
from sourceward.nn import Network, Projected
from sourceward.nn.auxiliary import DOMAIN_EMBEDDING, SINGLE_SAMPLE
from sourceward.nn.backbones import Backbone


@dataclass(frozen=True)
class TrainedWith(Baseline):
    """A method whose classifier is an auxiliary network of the backbone, not the model's own heads."""

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"
    auxiliary: ClassVar[str]

    def check(self, network: Network) -> None:
        super().check(network)
        backbone = inner_backbone(network)
        if backbone is None or self.auxiliary not in backbone.auxiliary:
            raise Unsuitable(
                f"This adapter needs a network that is trained with the backbone, but this model has none. "
                f"Fit it with --set finetune.method={self.auxiliary}."
            )

    def classify(self, network: Any, backbone: Backbone, inputs: Any) -> tuple[Tensor, Tensor]:
        """Return the backbone's features (batch, dim), and logits (batch, classes) by its own network."""
        raise NotImplementedError

    @torch.no_grad()
    def predict_batches(self, network: Network, batches: Iterator[Any]) -> Iterator[BatchPrediction]:
        backbone, kind = inner_backbone(network), network.scale.device.type
        assert backbone is not None
        for inputs in batches:
            with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
                raw, logits = self.classify(backbone.auxiliary[self.auxiliary], backbone, inputs)
            raw, logits = raw.float(), logits.float()
            if logits.shape[1] != network.classes:
                raise Unsuitable(
                    f"The network trained with the backbone knows {logits.shape[1]} classes, the model "
                    f"{network.classes}: a class has no training samples."
                )
            outer = network.backbone
            feature = network.rescale(outer.project(raw) if isinstance(outer, Projected) else raw)
            yield BatchPrediction(feature, logits.softmax(-1))


@ADAPTERS.register("generated_classifier")
@dataclass(frozen=True)
class GeneratedClassifier(TrainedWith):
    """Single-sample generalization: classify each sample by a classifier made from it (Xiao et al. 2022).

    Needs a model that was fitted with `finetune.method=single_sample`.
    """

    needs_batch: ClassVar[bool] = False
    auxiliary: ClassVar[str] = SINGLE_SAMPLE

    def classify(self, network: Any, backbone: Backbone, inputs: Any) -> tuple[Tensor, Tensor]:
        feature, domain = network.describe(backbone, inputs)
        return feature, network(feature, domain)


@ADAPTERS.register("domain_adaptive")
@dataclass(frozen=True)
class DomainAdaptive(TrainedWith):
    """Classify by features and the mean embedding of the batch, as that of its domain (Dubey et al. 2021).

    Needs a model that was fitted with `finetune.method=domain_embedding`.
    """

    auxiliary: ClassVar[str] = DOMAIN_EMBEDDING

    def classify(self, network: Any, backbone: Backbone, inputs: Any) -> tuple[Tensor, Tensor]:
        feature = backbone(inputs)
        return feature, network(feature, network.embed(inputs).mean(0, keepdim=True))
