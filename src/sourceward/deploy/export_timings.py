"""Times of an exported file beside the model and beside a bare exported classifier, on the CPU."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from sourceward.deploy.export import ExportedFile, write_graph
from sourceward.deploy.export_graph import ExportGraph, noise_off
from sourceward.deploy.export_samples import graph_inputs, stored_samples
from sourceward.model import Model

ROWS = (1, 16)
REPEATS = 7
SECONDS = 1.0
"""Least time of one repeat."""


class BareClassifier(ExportGraph):
    """The same backbone and heads with neither energies nor copies: what any classifier costs."""

    def _predict(self, feature: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z = None if self.fold.latent is None else self.fold.prior_mean(feature)
        rows = feature.expand(self.network.sources, -1, -1)
        per_source = self.fold.classify(rows, None if z is None else z.expand_as(rows)).transpose(0, 1)
        none = torch.zeros_like(per_source[..., 0])
        return per_source.mean(1), per_source, none, none


def measure_timings(model: Model, path: Path) -> dict[str, Any]:
    """Return times of prediction by the model, by its exported file and by a bare exported classifier.

    Args:
        model: on the host.
        path: its exported file.
    """
    load = round(os.getloadavg()[0], 2)
    quiet, threads = noise_off(model), torch.get_num_threads()
    samples = stored_samples(quiet)
    bare = quiet.with_tta("") if quiet.kind == "image" else quiet
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"bare{path.suffix}"
        write_graph(BareClassifier(bare), graph_inputs(bare, samples[:3]), file, {})
        exported, classifier = ExportedFile(path, threads), ExportedFile(file, threads)
        rows = [_times(model, samples[:count], exported, classifier) for count in ROWS]
    return {
        "model": {"kind": model.kind, "tta": model.tta, "num_steps": model.settings.num_steps},
        "file": path.suffix,
        "threads": threads,
        "load_at_start": load,
        "milliseconds": rows,
    } | _onnx_version(path)


def _times(model: Model, samples: Any, exported: ExportedFile, bare: ExportedFile) -> dict[str, Any]:
    """Median milliseconds of one call, each measured alternately with the others."""
    inputs = graph_inputs(model, samples)
    ways: dict[str, Callable[[], Any]] = {
        "model": lambda: model.adapt(samples),
        "exported": lambda: exported(inputs),
        "bare_classifier": lambda: bare(inputs),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, call in ways.items():
            call()
            count, start = 0, perf_counter()
            while count < 1 or perf_counter() - start < SECONDS / REPEATS:
                call()
                count += 1
            times[name].append(1000 * (perf_counter() - start) / count)
    return {"rows": len(samples), **{name: round(median(values), 3) for name, values in times.items()}}


def _onnx_version(path: Path) -> dict[str, str]:
    if path.suffix.lower() != ".onnx":
        return {}
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__}
