"""How time and memory of fit and predict grow with sources, transforms, classes, features and rows."""

import time
from typing import Any

import numpy as np
import torch

from sourceward._util.devices import peak_memory
from sourceward.bench.speed.models import Bare, SpeedPlan, make_images, make_model
from sourceward.bench.speed.timing import growth, timed
from sourceward.estimator import EnergyAdapter

SIZES = {"sources": 3, "classes": 7, "features": 64, "rows": 2000}
"""Where the other axes stand while one is measured."""

AXES = {
    "sources": (2, 4, 8),
    "classes": (7, 65, 345),
    "features": (256, 1024, 4096),
    "rows": (1_000, 10_000, 100_000, 1_000_000),
}
ITERATIONS = 20
"""Of training: an iteration costs the same for any number of rows."""

COPIES = {1: "", 2: "hflip", 3: "hflip+crop", 7: "hflip+crop+rotate"}
"""Transforms by the number of copies."""


def growth_by_size(device: torch.device, plan: SpeedPlan) -> list[dict[str, Any]]:
    """Time `EnergyAdapter` along each axis, and `Model` by transforms. Peak memory is that of the process (of
    the device on CUDA) so far: sizes grow, so that the last is that of the largest."""
    found = []
    for axis, values in AXES.items():
        costs: dict[int, dict[str, float]] = {}
        for value in values[: plan.growth]:
            costs[value] = _costs(device, **(SIZES | {axis: value}))
        exponents = {
            part: growth({size: cost[part] for size, cost in costs.items()})["exponent"]
            for part in ("fit_seconds", "predict_seconds")
        }
        found.append({"axis": axis, "costs": costs, "exponents": exponents})
    return [*found, _by_copies(device, plan)]


def _costs(device: torch.device, sources: int, classes: int, features: int, rows: int) -> dict[str, float]:
    random, rows = np.random.default_rng(0), max(rows, 2 * sources * classes)
    label, domain = np.arange(rows) % classes, np.arange(rows) // classes % sources
    X = random.standard_normal((rows, features), dtype=np.float32)
    X += random.normal(size=(classes, features)).astype(np.float32)[label]
    est = EnergyAdapter(num_steps=5, max_iter=ITERATIONS, device=device.type, verbose=False)
    start = time.perf_counter()
    est.fit(X, label, sample_domain=domain)
    fitted = time.perf_counter()
    est.predict(X)
    seconds = {"fit_seconds": fitted - start, "predict_seconds": time.perf_counter() - fitted}
    return {**seconds, "peak_memory_mb": round(peak_memory(device), 1)}


def _by_copies(device: torch.device, plan: SpeedPlan) -> dict[str, Any]:
    name = plan.backbones[0]
    model = make_model(name, Bare(name, device), plan.components, plan.image_size, 5, device)
    images, costs = make_images(4, plan.image_size, device), {}
    for copies, names in COPIES.items():
        with_copies = model.with_tta(names)
        time_of = timed(lambda m=with_copies: m.adapt_images(images), device, repeats=3)  # type: ignore[misc]
        costs[copies] = time_of["median_ms"]
    return {
        "axis": "copies",
        "backbone": name,
        "costs": costs,
        "exponents": {"predict": growth(costs)["exponent"]},
    }
