"""What an adapter costs: seconds per sample, from inputs to the answer."""

import time
from dataclasses import dataclass
from typing import Any

import torch

from sourceward.adaptation.base import Adapter
from sourceward.adaptation.baselines.peer import Peer, rows
from sourceward.nn import Network


@dataclass(frozen=True)
class Cost:
    """Seconds per sample."""

    total: float
    """From what the network takes to the answer, all of a stream divided by its rows."""
    backbone: float
    """One plain pass of the backbone, part of every adapter's total; 0 where there is none."""

    @property
    def adaptation(self) -> float:
        """What comes on top of the plain pass."""
        return max(self.total - self.backbone, 0.0)


def measure_cost(adapter: Adapter, network: Network, inputs: Any, *, repeats: int = 1) -> Cost:
    """Time an adapter on one stream, after a short one to warm up; the best of `repeats`.

    Args:
        inputs: what the network takes (images, tokens, or raw features where there is no backbone), as one
            tensor or dictionary. The decoding of files is not part of the cost.
    """
    count = rows(inputs)
    few = {k: v[:2] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[:2]
    _once(adapter, network, few)
    times = [_once(adapter, network, inputs) for _ in range(repeats)]
    backbone = min(plain for _, plain in times) if network.backbone is not None else 0.0
    return Cost(min(total for total, _ in times) / count, backbone / count)


def _once(adapter: Adapter, network: Network, inputs: Any) -> tuple[float, float]:
    start = _now()
    with torch.no_grad():
        feature = network.features(inputs)
    plain = _now() - start
    if adapter.reads == "inputs":
        start = _now()
        _run(adapter, network, inputs)
        return _now() - start, plain
    _run(adapter, network, feature)
    return _now() - start, plain


def _run(adapter: Adapter, network: Network, inputs: Any) -> None:
    """A peer without the energies that its answer is decorated with."""
    if isinstance(adapter, Peer):
        for _ in adapter.respond(network, inputs):
            pass
    else:
        adapter(network, inputs)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
