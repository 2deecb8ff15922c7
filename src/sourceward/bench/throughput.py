"""How fast a trained network reads: the backbone's share of every answer."""

import time
from typing import Any

import numpy as np

from sourceward.data import DomainDataset
from sourceward.inputs import encode, prepare_samples
from sourceward.nn import Network

SAMPLES = {"cuda": 2048, "cpu": 48}
"""Rows to time: a second or a few of work."""


def inner_backbone(module: Any) -> Any:
    """The backbone itself, without the projection that may follow it."""
    return getattr(module, "backbone", None) or module


def measure_encoding(network: Network, data: DomainDataset) -> float:
    """Milliseconds for each sample from decoded input to features, the second of two passes."""
    device = network.scale.device
    count = min(SAMPLES.get(device.type, 48), len(data))
    rows = np.random.default_rng(0).permutation(len(data))[:count]
    samples = prepare_samples(data.select(rows), inner_backbone(network.backbone), device, show=False)
    for _ in range(2):
        start = time.perf_counter()
        encode(network.features, samples, slice(0, count)).sum().item()  # waits for the device
        seconds = time.perf_counter() - start
    return 1000 * seconds / count
