"""Prediction-time batch normalization (Nado et al. 2020), and its blend with the source (Schneider 2020)."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sourceward.adaptation.base import ADAPTERS, Unsuitable
from sourceward.adaptation.baselines.peer import Peer, Response, Student, at_least, backbone_of, encoder
from sourceward.nn import Network


@ADAPTERS.register("batchnorm")
@dataclass(frozen=True)
class PredictionTimeBatchNorm(Peer):
    """Batch norm by the statistics of the test batch in place of the sources' (Nado et al. 2020).

    Args:
        prior: how many samples the sources' statistics count for: with n in the batch they get the weight
            prior / (prior + n) (Schneider et al. 2020). 0 leaves them out.
    """

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"

    prior: float = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "prior")

    def check(self, network: Network) -> None:
        super().check(network)
        if not any(isinstance(m, _BatchNorm) for m in backbone_of(network).modules()):
            raise Unsuitable("Prediction-time batch norm needs batch norm, but this backbone has none.")

    def stream(self, network: Network, batches: Iterator[Any]) -> Iterator[Response]:
        clone = copy.deepcopy(network)
        for module in backbone_of(clone).modules():
            if isinstance(module, _BatchNorm):
                module.register_forward_pre_hook(blend_statistics(module, self.prior))
        student = Student(clone, encoder(clone), [])
        for batch in batches:
            yield student.answer(batch)


def blend_statistics(module: _BatchNorm, prior: float) -> Any:
    """A hook that gives a batch norm, before it reads a batch, the blend of the stored statistics and the
    batch's own."""
    assert module.running_mean is not None
    assert module.running_var is not None
    source_mean, source_var = module.running_mean.clone(), module.running_var.clone()

    def hook(module: Any, inputs: tuple[Tensor]) -> None:
        axes = [0, *range(2, inputs[0].ndim)]
        var, mean = torch.var_mean(inputs[0].float(), axes, correction=0)
        share = prior / (prior + len(inputs[0]))
        module.running_mean = torch.lerp(mean, source_mean, share).to(source_mean.dtype)
        module.running_var = torch.lerp(var, source_var, share).to(source_var.dtype)

    return hook
