"""Prediction-time batch normalization (Nado et al. 2020), with a prior on the source (Schneider et al. 2020).

Each batch norm layer normalises by w m_source + (1 - w) m_batch, and the variance alike, with
w = prior / (prior + n) for n samples in the batch.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sourceward.adaptation.base import ADAPTERS, Unsuitable
from sourceward.adaptation.baselines.base import Baseline, BatchPrediction
from sourceward.adaptation.baselines.classifier import encoder
from sourceward.adaptation.baselines.trainable import TrainableCopy, backbone_of
from sourceward.nn import Network


@ADAPTERS.register("batchnorm")
@dataclass(frozen=True)
class PredictionTimeBatchNorm(Baseline):
    """Batch norm by the statistics of the test batch in place of the sources' (Nado et al. 2020).

    Args:
        prior: number of samples that the sources' statistics count for (N in Schneider et al. 2020); 0 uses
            the batch's statistics alone (Nado et al.).
    """

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"

    prior: float = 0

    def check(self, network: Network) -> None:
        super().check(network)
        if not any(isinstance(m, _BatchNorm) for m in backbone_of(network).modules()):
            raise Unsuitable("Prediction-time batch norm needs batch norm, but this backbone has none.")

    def predict_batches(self, network: Network, batches: Iterator[Any]) -> Iterator[BatchPrediction]:
        clone = copy.deepcopy(network)
        for module in backbone_of(clone).modules():
            if isinstance(module, _BatchNorm):
                module.register_forward_pre_hook(mix_statistics(module, self.prior))
        model = TrainableCopy(clone, encoder(clone), [])
        for batch in batches:
            yield model.predict(batch)


def mix_statistics(module: _BatchNorm, prior: float) -> Any:
    """Return a forward pre-hook that sets the layer's statistics to the mixture of source and batch."""
    assert module.running_mean is not None
    assert module.running_var is not None
    source_mean, source_var = module.running_mean.clone(), module.running_var.clone()

    def hook(module: Any, inputs: tuple[Tensor]) -> None:
        axes = [0, *range(2, inputs[0].ndim)]
        var, mean = torch.var_mean(inputs[0].float(), axes, correction=0)
        source_weight = prior / (prior + len(inputs[0]))
        module.running_mean = torch.lerp(mean, source_mean, source_weight).to(source_mean.dtype)
        module.running_var = torch.lerp(var, source_var, source_weight).to(source_var.dtype)

    return hook
