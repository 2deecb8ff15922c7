"""Throughput and memory of a trained network."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sourceward._util.cost import Meter
from sourceward.data import DomainDataset
from sourceward.data.loading import encode, prepare_samples
from sourceward.model import Model
from sourceward.nn import Network
from sourceward.nn.folded import forget
from sourceward.settings import AdaptSettings

SAMPLES = {"cuda": 2048, "cpu": 48}
"""Rows to encode: a few seconds of work."""

PREDICTIONS = {"cuda": 512, "cpu": 48}
"""Rows to predict with a backbone; features are cheap."""

CHUNK = 256
"""Rows that `predict` passes to the model at once."""


def inner_backbone(module: Any) -> Any:
    """Return the backbone without its projection."""
    return getattr(module, "backbone", None) or module


def measure_encoding(network: Network, data: DomainDataset) -> float:
    """Return milliseconds per sample from decoded input to features, in the second of two passes."""
    device = network.scale.device
    count = min(SAMPLES.get(device.type, 48), len(data))
    rows = np.random.default_rng(0).permutation(len(data))[:count]
    samples = prepare_samples(data.select(rows), inner_backbone(network.backbone), device, show=False)
    for _ in range(2):
        start = time.perf_counter()
        encode(network.features, samples, slice(0, count)).sum().item()  # waits for the device
        seconds = time.perf_counter() - start
    return 1000 * seconds / count


def measure_prediction(network: Network, settings: AdaptSettings, data: DomainDataset) -> dict[str, Any]:
    """Measure `predict`, from decoded images, texts or features to probabilities: samples per second in the
    second of two passes, and the peak memory of both, since the first records graphs on CUDA.

    Args:
        network: trained.
        settings: of test time.
        data: some of its rows are predicted; labels are not used.
    """
    device = network.scale.device
    count = min(2 * CHUNK if network.backbone is None else PREDICTIONS.get(device.type, 48), len(data))
    part = data.select(np.random.default_rng(0).permutation(len(data))[:count])
    model = Model(network, (), (), settings)
    inputs, predict = _inputs(model, part)
    meter = Meter(device)
    for _ in range(2):
        start = time.perf_counter()
        for first in range(0, count, CHUNK):
            predict(inputs[first : first + CHUNK])  # on the host, so it has waited for the device
        seconds = time.perf_counter() - start
    peak = meter.read()["peak_memory_mb"]
    if device.type == "cuda":
        forget(network)  # graphs of this call alone
    return {
        "samples": count,
        "num_steps": settings.num_steps,
        "samples_per_second": round(count / seconds, 1),
        "peak_memory_mb": peak,
    }


def _inputs(model: Model, part: DomainDataset) -> tuple[Any, Callable[[Any], Any]]:
    """Return rows as `predict` has them once they are read, and the function that takes them."""
    if part.kind == "image":
        pixels = prepare_samples(part, model.backbone, torch.device("cpu"), show=False)
        return torch.cat([*pixels.kept(slice(0, len(part)))]), model.adapt_images
    items = [*part.items] if part.kind == "text" else np.asarray(part.items, dtype=np.float32)
    return items, model.adapt
