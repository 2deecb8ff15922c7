"""Answers of the server: predictions as JSON values, and the details of one sample for the web page."""

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from sourceward.adaptation.base import AdaptationResult
from sourceward.adaptation.copies import Statistics, copies_of
from sourceward.adaptation.tta import CopyResult, in_doubt
from sourceward.data.transforms import OWN
from sourceward.deploy.server_inputs import Sample
from sourceward.model import Model
from sourceward.model.captured import predict_images
from sourceward.model.inputs import Failure
from sourceward.model.prediction import UNREADABLE

SHOWN_CLASSES = 10
THUMBNAIL = 160
"""Pixels of the longer side."""


class Request(NamedTuple):
    """One sample in the queue."""

    value: Any
    details: bool = False


def answer(model: Model, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Predict samples together; each answer is that of the sample by itself."""
    values = [request.value for request in requests]
    if model.kind == "image":
        result = model.adapt_images(torch.stack(values))
    else:
        result = model.adapt(np.stack(values) if model.kind == "features" else values)
    found = [
        {**asdict(prediction), "probabilities": _top(result.probabilities[row], model.classes)}
        for row, prediction in enumerate(model.explain(result))
    ]
    for request, own in zip(requests, found):
        if request.details:
            own |= details(model, request.value)
    return found


def unreadable(failure: Failure) -> dict[str, Any]:
    return {"status": UNREADABLE, "reason": failure.reason}


def _top(probabilities: np.ndarray, classes: Sequence[str]) -> dict[str, float]:
    """The most probable classes, the first first."""
    order = np.argsort(-probabilities, kind="stable")[:SHOWN_CLASSES]
    return {classes[number]: float(probabilities[number]) for number in order}


def details(model: Model, value: Any) -> dict[str, Any]:
    """The prediction on each copy, what each source predicts, and the chain in two dimensions."""
    if model.kind == "image":
        feature = model.image_features(value[None])
    else:
        feature = model.features(value[None] if model.kind == "features" else [value])
    plain = model.adapt_features(feature, trajectory=True)
    off = model.adapt_features(feature, num_steps=0)
    found: dict[str, Any] = {
        "unadapted": _label(off, model.classes),
        "sources": [
            {"name": name, "label": model.classes[row.argmax()], "probability": float(row.max())}
            for name, row in zip(model.sources, plain.per_source[0])
        ],
        "steps": {name: int(count) for name, count in zip(model.sources, plain.steps[0])},
        "chain": chain(model, plain),
        "copies": [],
    }
    if model.kind == "image":
        results = predict_images(model, model.adapter_for(), value[None].to(model.device), model.tta)
        found["copies"] = _copies(model, value[None], results)
        thresholds = model.tta_thresholds
        found["copies_used"] = not thresholds or bool(in_doubt(results[0].result, thresholds[0])[0])
    return found


def _copies(model: Model, images: torch.Tensor, results: list[CopyResult]) -> list[dict[str, Any]]:
    """Name, prediction, weight and thumbnail of the image and of each transformed copy."""
    size, statistics = model.preprocessing.copy_size, Statistics.of(model.network)
    made = list(copies_of(images.to(model.device), model.tta, statistics, size))
    made = sorted(made, key=lambda pair: pair[1].source != OWN)  # the order of the results
    toward = iter(model.sources)  # `fourier` makes one copy for each source, in their order
    found, total = [], sum(one.weight for one in results)
    for (name, copy), (result, weight, _) in zip(made, results, strict=True):
        source = next(toward) if name == "fourier" else ""
        source = model.sources[copy.source] if copy.source >= 0 else source
        shown = {"name": name or "image", "source": source, "weight": weight / total}
        found.append({**shown, "image": thumbnail(copy.images[0]), **_label(result, model.classes)})
    return found


def _label(result: AdaptationResult, classes: Sequence[str]) -> dict[str, Any]:
    row = result.probabilities[0]
    return {"label": classes[row.argmax()], "probability": float(row.max())}


def chain(model: Model, result: AdaptationResult) -> dict[str, Any] | None:
    """Points of each source's chain in the plane of their first two principal components.

    Returns:
        {"points": {source: [[x, y], ...]}, "variance": share of the variance in that plane}; None without
        steps.
    """
    if result.trajectory is None or result.trajectory.shape[1] < 2:
        return None
    network = model.network
    raw = torch.as_tensor(result.trajectory[0], device=network.scale.device)  # (points, sources, dim)
    points = network.rescale(raw.flatten(0, 1)).double().cpu()
    centred = points - points[0]
    _, sizes, axes = torch.linalg.svd(centred - centred.mean(0), full_matrices=False)
    plane = centred @ axes[:2].T
    if plane.shape[1] < 2:
        plane = torch.nn.functional.pad(plane, (0, 2 - plane.shape[1]))
    total = sizes.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
    places = plane.unflatten(0, raw.shape[:2]).transpose(0, 1)
    return {
        "points": {name: places[number].tolist() for number, name in enumerate(model.sources)},
        "variance": float(sizes[:2].square().sum() / total),
    }


def thumbnail(image: torch.Tensor) -> str:
    """A uint8 image (3, height, width) as a data address that a browser shows."""
    from PIL import Image

    shown = Image.fromarray(image.cpu().permute(1, 2, 0).contiguous().numpy())
    shown.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    shown.save(file, "WEBP", quality=85)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"


def named_answer(sample: Sample, found: dict[str, Any] | None) -> dict[str, Any]:
    """The answer for one sample of a request; None where it is unreadable."""
    own = unreadable(sample.value) if found is None else found
    return {"input": sample.name, **own}
