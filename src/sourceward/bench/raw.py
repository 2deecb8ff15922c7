"""Leave one domain out on images or texts: a whole `fit` for each target and seed.

No adaptation and every number of steps are asked of the same model, on the same features.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sourceward.bench.provenance import versions
from sourceward.data import DomainDataset
from sourceward.evaluation import dataset_features, evaluate
from sourceward.fitting import fit
from sourceward.model import Model


def bench_raw(
    dataset: DomainDataset,
    *,
    runs: Path,
    targets: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    steps: Sequence[int] = (0, 5, 20),
    on_cell: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run every cell and return a results dictionary, ready for JSON.

    Args:
        dataset: images or texts.
        runs: folder for the model folders; a finished one is not trained again.
        targets: domains to leave out; those the owners hold out, or each in turn, when empty.
        seeds: one fit each.
        steps: numbers of steps to ask each model for.
        on_cell: called with each finished cell.
        options: of `fit`.
    """
    cells = []
    for target in targets or dataset.targets or dataset.domain_names:
        for seed in seeds:
            cell = _cell(dataset, target, seed, runs / f"{target}-{seed}", steps, options)
            cells.append(cell)
            if on_cell is not None:
                on_cell(cell)
    plain = {
        name: str(value) for name, value in options.items() if name in ("backbone", "freeze", "settings")
    }
    return {"settings": plain, "steps": list(steps), "versions": versions(), "cells": cells}


def _cell(
    dataset: DomainDataset, target: str, seed: int, out: Path, steps: Sequence[int], options: dict[str, Any]
) -> dict[str, Any]:
    # Several held-out domains stay held out together: the model of one must not train on another.
    left_out = set(dataset.targets) | {target} if target in dataset.targets else {target}
    _reset_memory()
    start = time.perf_counter()
    model = fit(dataset, out=out, target=sorted(left_out), seed=seed, **options)
    fit_seconds, fit_memory = time.perf_counter() - start, _peak_memory()
    by_steps = {}
    for k in steps:
        scores = evaluate(model, dataset, target=target, num_steps=k)["domains"][target]
        by_steps[str(k)] = {
            "accuracy": scores["adapted"],
            **{name: scores[name] for name in ("gain", "gain_low", "gain_high", "per_source")},
        }
    return {
        "data": Path(dataset.name).stem,
        "target": target,
        "seed": seed,
        "target_rows": scores["samples"],
        "validation": model.info["metrics"],
        "settings": model.info.get("settings"),
        "fit_seconds": fit_seconds,
        "fit_peak_memory_mb": fit_memory,
        "predict": _predict_cost(model, dataset.of_domains([target])),
        "by_steps": by_steps,
    }


def _predict_cost(model: Model, dataset: DomainDataset, rows: int = 1024) -> dict[str, float | None]:
    """Samples per second of backbone and adaptation together, decoding left out, and peak memory."""
    import numpy as np

    part = dataset.select(np.arange(min(rows, len(dataset))))
    _reset_memory()
    dataset_features(model, part)  # decodes, warms up
    start = time.perf_counter()
    feature = dataset_features(model, part)
    _wait()
    backbone = time.perf_counter() - start
    start = time.perf_counter()
    model.adapt_features(feature)
    _wait()
    adaptation = time.perf_counter() - start
    return {
        "samples_per_second": len(part) / (backbone + adaptation),
        "adaptation_share": adaptation / (backbone + adaptation),
        "peak_memory_mb": _peak_memory(),
    }


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _reset_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak_memory() -> float | None:
    """Of the device when there is one, otherwise of the process, in MB (2^20 bytes)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
