"""T3A: test-time classifier adjustment (Iwasawa & Matsuo, NeurIPS 2021).

Each test feature joins the support set of its predicted class; logits are the products of the feature with
the normalised mean of each class's supports. Nothing is trained by gradients.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTERS
from sourceward.adaptation.baselines.base import Baseline, BatchPrediction
from sourceward.adaptation.baselines.classifier import ensemble_logits
from sourceward.adaptation.baselines.support_set import SupportSet
from sourceward.functional.aggregation import log_mixture
from sourceward.nn import Network


@ADAPTERS.register("t3a")
@dataclass(frozen=True)
class T3A(Baseline):
    """T3A: class weights become the mean of the most certain test features (Iwasawa & Matsuo 2021).

    Args:
        keep: supports of each class (M). The paper chooses among 1, 5, 20, 50, 100 and all by source
            validation; 0 keeps all.
    """

    needs_batch: ClassVar[bool] = False

    batch_size: int = 1
    keep: int = 100

    @torch.no_grad()
    def predict_batches(self, network: Network, batches: Iterator[Tensor]) -> Iterator[BatchPrediction]:
        supports = SupportSet(network, self.keep)
        for feature in batches:
            supports.add(feature, log_mixture(ensemble_logits(network, feature)))
            yield BatchPrediction(feature, (feature @ supports.prototypes().T).softmax(-1))
