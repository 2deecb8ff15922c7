"""`export`: a model as one .onnx or .pt2 file that runs without sourceward, checked against the model."""

import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sourceward._util.errors import InputError
from sourceward._util.reading import open_regular
from sourceward._util.storage import atomic_file, check_targets, write_whole
from sourceward.deploy.export_card import card, preprocess
from sourceward.deploy.export_graph import INPUTS, OUTPUTS, ExportGraph, noise_off
from sourceward.deploy.export_samples import graph_inputs, stored_samples
from sourceward.model import Model

TOLERANCE = 1e-4
"""Largest difference from the model in any output."""

BATCHES = (1, 2, 7)
"""Numbers of rows with which the file is checked."""

SUFFIXES = (".onnx", ".pt2")


def export(model: Model, path: str | Path, *, samples: Any = None) -> dict[str, Any]:
    """Write the whole prediction to one file; returns what `<name>.preprocess.json` beside it says.

    The file takes uint8 images, token ids or float features and returns `OUTPUTS`. It has the model's
    test-time augmentation, Langevin steps and aggregation inside, without noise. It is checked with 1, 2 and
    7 rows against the model; one that differs by more than 1e-4 is not written. `<name>.md` is the card.

    Args:
        model: see `load`; it stays as it is.
        path: ends in .onnx (ONNX, needs `sourceward[deploy]`) or .pt2 (`torch.export`).
        samples: at least 7 inputs, as `Model.predict` takes them, for the check; made up when None.
    """
    path = check_path(path)
    quiet = noise_off(model)
    inputs = stored_samples(quiet) if samples is None else samples
    if len(inputs) < max(BATCHES):
        raise InputError(f"Expected {max(BATCHES)} samples or more for the check, but got {len(inputs)}.")
    noise = _noise_difference(model, quiet, inputs)
    info = preprocess(quiet, model.settings.step.noise_std, noise)
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / f"graph{path.suffix}"
        write_graph(ExportGraph(quiet), graph_inputs(quiet, inputs[:3]), graph, info)
        rows = inputs[: max(BATCHES)]
        info["check"] = _check(graph, quiet, rows)
        info["check"]["samples"] = "synthetic" if samples is None else "given"
        with atomic_file(path) as stream, open_regular(graph, None) as whole:
            shutil.copyfileobj(whole, stream, 2**20)
            if quiet.backbone is not None:
                quiet.backbone.save_assets(path.parent)
            write_whole(path.with_suffix(".md"), card(quiet, info, path.name))
            write_whole(path.with_suffix(".preprocess.json"), json.dumps(info, indent=2) + "\n")
    return info


def check_path(path: str | Path) -> Path:
    """Refuse a path of another kind, and a missing package, before any work."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"Expected a file that ends in .onnx or .pt2, but got '{path}'.")
    check_targets(path, path.with_suffix(".md"), path.with_suffix(".preprocess.json"))
    if path.suffix.lower() == ".onnx":
        try:
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError:
            raise InputError(
                "ONNX needs onnx, onnxscript and onnxruntime: pip install 'sourceward[deploy]'. "
                "A .pt2 file needs none of them."
            ) from None
    return path


def write_graph(graph: nn.Module, example: tuple[Tensor, ...], path: Path, info: dict[str, Any]) -> None:
    """Trace a graph with a dynamic batch and write it.

    Args:
        graph: an `ExportGraph`, or anything with its inputs.
        example: 2 or 3 rows, since 1 row would be a constant.
        path: ends in .onnx or .pt2.
        info: goes into the file as JSON under the name `sourceward`.
    """
    batch = torch.export.Dim("batch", min=1)
    length = torch.export.Dim("length", min=1, max=getattr(graph, "longest", None))
    axes = {0: batch, 1: length} if len(example) == 2 else {0: batch}
    shapes = tuple(axes for _ in example) + (None,) * (2 - len(example))
    given = (*example, *(None,) * (2 - len(example)))
    names = INPUTS["text"] if len(example) == 2 else INPUTS["image" if example[0].ndim == 4 else "features"]
    with torch.no_grad(), _quiet():
        if path.suffix.lower() == ".pt2":
            program = torch.export.export(graph, given, dynamic_shapes=shapes, strict=False)
            torch.export.save(program, path, extra_files={"sourceward": json.dumps(info)})
            return
        exported = torch.onnx.export(
            graph,
            given,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(names),
            output_names=list(OUTPUTS),
            verbose=False,
        )
        assert exported is not None
        exported.model.metadata_props["sourceward"] = json.dumps(info)
        exported.save(path, external_data=False)


class ExportedFile:
    """Run a file of `export`: numpy arrays by input name to numpy arrays by output name.

    Args:
        path: ends in .onnx or .pt2.
        threads: of onnxruntime; its own choice when None.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        self.session = self.module = None
        if path.suffix.lower() == ".pt2":
            self.module = torch.export.load(path).module()
            return
        import onnxruntime

        options = onnxruntime.SessionOptions()
        if threads is not None:
            options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
        if self.session is not None:
            names = (value.name for value in self.session.get_inputs())
            return self.session.run(None, {n: v.numpy() for n, v in zip(names, inputs)})
        assert self.module is not None
        with torch.no_grad():
            return [out.numpy() for out in self.module(*inputs, *(None,) * (2 - len(inputs)))]


def _check(path: Path, quiet: Model, samples: Any) -> dict[str, Any]:
    """Compare the file with the model; returns the largest difference of each output."""
    file, expected = ExportedFile(path), quiet.adapt(samples)
    largest = dict.fromkeys(OUTPUTS[:-1], 0.0)  # not the agreement, which jumps where two classes tie
    for rows in BATCHES:
        for name, found in zip(largest, file(graph_inputs(quiet, samples[:rows]))):
            wanted = getattr(expected, name)[:rows]
            apart = float(np.abs(found - wanted).max()) if found.shape == wanted.shape else float("inf")
            largest[name] = max(largest[name], apart)
    wrong = {name: apart for name, apart in largest.items() if not apart <= TOLERANCE}
    if wrong:
        shown = ", ".join(f"{name} by {apart:.2g}" for name, apart in wrong.items())
        raise InputError(
            f"Expected the exported graph to differ from the model by at most {TOLERANCE:g}, but it differs "
            f"in {shown}. No file was written. Try other transforms with --tta, or --to a .pt2 file."
        )
    return {"batches": list(BATCHES), "largest_difference": largest}


def _noise_difference(model: Model, quiet: Model, samples: Any) -> dict[str, Any]:
    """What noise off changes, on the samples of the check."""
    noisy, plain = model.adapt(samples).probabilities, quiet.adapt(samples).probabilities
    return {
        "samples": len(noisy),
        "largest_probability_difference": float(np.abs(noisy - plain).max()),
        "changed_labels": int((noisy.argmax(1) != plain.argmax(1)).sum()),
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Within this context, the exporters' own warnings are not shown; the check judges the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
