"""T3A: test-time classifier adjustment (Iwasawa & Matsuo, NeurIPS 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sourceward.adaptation.base import ADAPTERS
from sourceward.adaptation.baselines.classifier import log_vote, voter_logits
from sourceward.adaptation.baselines.peer import Peer, Response, at_least
from sourceward.adaptation.baselines.supports import Supports
from sourceward.nn import Network


@ADAPTERS.register("t3a")
@dataclass(frozen=True)
class T3A(Peer):
    """T3A: class weights become the mean direction of the surest test features (Iwasawa & Matsuo 2021).

    Args:
        keep: supports of each class, M in the paper, which chooses it on source validation; 0 keeps all.
    """

    needs_batch: ClassVar[bool] = False

    batch_size: int = 1
    keep: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "keep")

    @torch.no_grad()
    def stream(self, network: Network, batches: Iterator[Any]) -> Iterator[Response]:
        supports = Supports(network, self.keep)
        for feature in batches:
            supports.add(feature, log_vote(voter_logits(network, feature)))
            yield Response(feature, (feature @ supports.prototypes().T).softmax(-1))
