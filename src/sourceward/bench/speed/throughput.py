"""Throughput and memory of a trained model."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sourceward._util.devices import Meter
from sourceward.data import DomainDataset
from sourceward.data.loading import encode, prepare_samples
from sourceward.model import Model
from sourceward.nn.folded import clear_folded

ENCODED = {"cuda": 2048, "cpu": 48}
"""Rows to encode: a few seconds of work."""

PREDICTED = {"cuda": 512, "cpu": 48}
"""Rows to predict with a backbone; features are cheap."""

CHUNK = 256
"""Rows that `predict` passes to the model at once."""


def measure_encoding(model: Model, data: DomainDataset) -> float:
    """Return milliseconds per sample from decoded input to features, in the second of two passes."""
    part = _some(data, ENCODED.get(model.device.type, 48))
    samples = prepare_samples(part, model.backbone, model.device, show=False)
    for _ in range(2):
        start = time.perf_counter()
        encode(model.network.features, samples, slice(0, len(part))).sum().item()  # waits for the device
        seconds = time.perf_counter() - start
    return 1000 * seconds / len(part)


def measure_prediction(model: Model, num_steps: int, data: DomainDataset) -> dict[str, Any]:
    """Measure `predict` without TTA, from decoded images, texts or features to probabilities: samples per
    second in the second of two passes, and the peak memory of both, since the first records graphs on CUDA.

    Args:
        model: trained.
        num_steps: of adaptation.
        data: some of its rows are predicted; labels are not used.
    """
    model, cuda = model.with_tta(""), model.device.type == "cuda"
    part = _some(data, 2 * CHUNK if model.backbone is None else PREDICTED.get(model.device.type, 48))
    inputs, predict = _inputs(model, part)
    meter = Meter(model.device)
    for _ in range(2):
        start = time.perf_counter()
        for first in range(0, len(part), CHUNK):
            predict(inputs[first : first + CHUNK], num_steps=num_steps)  # waits for the device
        seconds = time.perf_counter() - start
    peak = meter.read()["peak_memory_mb"]
    if cuda:
        clear_folded(model.network)  # graphs of this call alone
    return {
        "samples": len(part),
        "num_steps": num_steps,
        "samples_per_second": round(len(part) / seconds, 1),
        "peak_memory_mb": peak,
    }


def _some(data: DomainDataset, count: int) -> DomainDataset:
    return data.select(np.random.default_rng(0).permutation(len(data))[:count])


def _inputs(model: Model, part: DomainDataset) -> tuple[Any, Callable[..., Any]]:
    """Return rows as `predict` has them once they are read, and the function that takes them."""
    if part.kind == "image":
        pixels = prepare_samples(part, model.backbone, torch.device("cpu"), show=False)
        return torch.cat([*pixels.stored(slice(0, len(part)))]), model.adapt_images
    items = [*part.items] if part.kind == "text" else np.asarray(part.items, dtype=np.float32)
    return items, model.adapt
