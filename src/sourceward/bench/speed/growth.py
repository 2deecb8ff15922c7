"""How time and memory of fit and predict grow with sources, transforms, classes, features and rows."""

import time
from typing import Any

import numpy as np
import torch

from sourceward.bench.speed.models import Bare, SpeedPlan, make_images, make_model
from sourceward.bench.speed.timing import growth, peak_memory, timed
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
    """Time `EnergyAdapter` along each axis, and `Model` by transforms, with the memory that a call takes."""
    found = []
    _costs(device, **SIZES)  # warms up
    for axis, values in AXES.items():
        costs: dict[int, dict[str, Any]] = {}
        for value in values[: plan.growth]:
            costs[value] = _costs(device, **(SIZES | {axis: value}))
        exponents = {
            part: growth({size: cost[part] for size, cost in costs.items()})["exponent"]
            for part in ("fit_seconds", "predict_seconds")
        }
        found.append({"axis": axis, "costs": costs, "exponents": exponents})
    return [*found, _by_copies(device, plan)]


def _costs(device: torch.device, sources: int, classes: int, features: int, rows: int) -> dict[str, Any]:
    random, rows = np.random.default_rng(0), max(rows, 2 * sources * classes)
    label, domain = np.arange(rows) % classes, np.arange(rows) // classes % sources
    X = random.standard_normal((rows, features), dtype=np.float32)
    X += random.normal(size=(classes, features)).astype(np.float32)[label]
    est = EnergyAdapter(num_steps=5, max_iter=ITERATIONS, device=device.type, verbose=False)
    found: dict[str, Any] = {}
    for name, call in (
        ("fit", lambda: est.fit(X, label, sample_domain=domain)),
        ("predict", lambda: est.predict(X)),
    ):
        start = time.perf_counter()
        peak = peak_memory(call, device)
        found[f"{name}_seconds"] = time.perf_counter() - start
        found[f"{name}_mb"] = None if peak is None else round(peak, 1)
    return found


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
