"""Encoders of a model's images, and prediction from pixels as one captured CUDA graph."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sourceward.adaptation.base import AdaptationResult, replace_rows, select_rows
from sourceward.adaptation.copies import CopyEncoder, Statistics
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.adaptation.tta import average, in_doubt, stop_early
from sourceward.nn import folded
from sourceward.nn.encoder import ImageEncoder, StaleEncoder

if TYPE_CHECKING:
    from sourceward.model.model import Model

KEY = "_image_encoders"
"""Where a model keeps its encoders."""


ONE_PASS = 1
"""Images on CUDA whose copies are computed with them at once: a few rows take the time of one."""


def adapt_images(
    model: "Model", adapter: EnergyAdaptation, images: Tensor, names: str, threshold: float | None
) -> AdaptationResult:
    """Adapt uint8 images of the model's own size, with copies of those that are in doubt.

    Args:
        model: of images.
        adapter: of features.
        images: (n, 3, height, width).
        names: transforms, joined by +.
        threshold: see `Model.tta_threshold`.
    """
    images = images.to(model.device)
    if threshold is None or (images.is_cuda and len(images) <= ONE_PASS):
        results, weights = predict_images(model, adapter, images, names)
        return stop_early(results[0], average(results, weights), threshold)
    (plain,), _ = predict_images(model, adapter, images)
    doubt = in_doubt(plain, threshold)
    if not doubt.any():
        return plain
    rows = images[torch.from_numpy(doubt).to(images.device)]
    copies, weights = predict_images(model, adapter, rows, names, plain=False)
    averaged = average([select_rows(plain, doubt), *copies], (1.0, *weights))
    return replace_rows(plain, doubt, averaged)


def predict_images(
    model: "Model", adapter: EnergyAdaptation, images: Tensor, names: str = "", plain: bool = True
) -> tuple[list[AdaptationResult], tuple[float, ...]]:
    """Adapt uint8 images of the model's own size and their copies in one pass: results and their weights.

    Args:
        model: of images.
        adapter: of features.
        images: (n, 3, height, width).
        names: transforms, joined by +.
        plain: whether the images themselves are among the copies; they are the first then.
    """
    network, known = model.network, model.__dict__.get(KEY, {}).get((names, plain))
    if model.device.type != "cuda":
        encode = copy_encoder(model, names, plain)
        with torch.no_grad():
            copies = network.rescale(encode.encode(images))
        return [adapter(network, feature) for feature in copies], encode.weights
    try:
        if known is None or not _describes(known, model):
            raise StaleEncoder
        results = adapter.predict_copies(network, images, known)  # it is checked while the graph runs
    except StaleEncoder:
        known = _encoder(model, names, plain)
        results = adapter.predict_copies(network, images, known)
    assert isinstance(known.encode, CopyEncoder)
    return results, known.encode.weights


def copy_encoder(model: "Model", names: str, plain: bool = True) -> CopyEncoder:
    """The encoder of a model's images and their copies."""
    encode = _encoder(model, names, plain).encode
    assert isinstance(encode, CopyEncoder)
    return encode


def forget_encoders(model: "Model") -> None:
    """Drop the encoders, and with them the memory of their graphs."""
    model.__dict__.pop(KEY, None)


def _encoder(model: "Model", names: str, plain: bool) -> ImageEncoder:
    network, encoders = model.network, model.__dict__.setdefault(KEY, {})
    known = encoders.get((names, plain))
    if known is None or not _describes(known, model) or not known.valid():
        if known is not None:
            encoders.clear()
            folded(network).graphs.clear()
        assert network.backbone is not None
        encode = CopyEncoder(network.backbone, model.preprocessing, names, Statistics.of(network), plain)
        known = ImageEncoder(network, model.preprocessing, encode, len(encode.weights))
        encoders[names, plain] = known
    return known


def _describes(encoder: ImageEncoder, model: "Model") -> bool:
    """Whether it was made of this network and its preprocessing."""
    return encoder.network is model.network and encoder.preprocessing == model.preprocessing
