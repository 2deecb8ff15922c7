"""Encoders of a model's images, and prediction from pixels as one captured CUDA graph."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from sourceward.adaptation.base import AdaptationResult, replace_rows, select_rows
from sourceward.adaptation.copies import CopyEncoder, Statistics
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.adaptation.tta import CopyResult, in_doubt, level_average, levels, stop_early
from sourceward.nn import folded
from sourceward.nn.encoder import ImageEncoder, StaleEncoder

if TYPE_CHECKING:
    from sourceward.model.model import Model

KEY = "_image_encoders"
"""Where a model keeps its encoders."""


ONE_PASS = 1
"""Images on CUDA whose copies are computed with them at once: a few rows take the time of one."""

FEW = 16
"""Images in doubt on CUDA whose further copies are all computed at once, for the same reason."""


def adapt_images(
    model: "Model",
    adapter: EnergyAdaptation,
    images: Tensor,
    names: str,
    thresholds: Sequence[float],
    known: Sequence[CopyResult] = (),
) -> AdaptationResult:
    """Adapt uint8 images of the model's own size, with copies of those that are in doubt.

    The result is that of `stop_early` on all copies of every image; this computes those that count.

    Args:
        model: of images.
        adapter: of features.
        images: (n, 3, height, width).
        names: transforms, joined by +.
        thresholds: see `Model.tta_thresholds`.
        known: predictions on the images, and on the copies at the levels before.
    """
    images, every, made = images.to(model.device), levels(names, thresholds), {copy.name for copy in known}
    level = next(place for place, some in enumerate(every) if not made.issuperset(some))
    if has_few(images, FEW if known else ONE_PASS):
        level = len(every) - 1
    wanted = [name for name in every[level] if name and name not in made]
    known = [*known, *predict_images(model, adapter, images, "+".join(wanted), plain="" not in made)]
    if level == len(every) - 1:
        return stop_early(known, names, thresholds)
    here = level_average(known, every[level])
    doubt = in_doubt(here, thresholds[level])
    if not doubt.any():
        return here
    rest = [copy._replace(result=select_rows(copy.result, doubt)) for copy in known]
    rows = images[torch.from_numpy(doubt.nonzero()[0]).to(images.device)]  # a mask would wait for the device
    return replace_rows(here, doubt, adapt_images(model, adapter, rows, names, thresholds, rest))


def has_few(images: Tensor, limit: int) -> bool:
    """Whether all copies of the images take about the time of some of them."""
    return images.is_cuda and len(images) <= limit


def predict_images(
    model: "Model", adapter: EnergyAdaptation, images: Tensor, names: str = "", plain: bool = True
) -> list[CopyResult]:
    """Adapt uint8 images of the model's own size and their copies in one pass.

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
        together = adapter(network, copies.flatten(0, 1))  # rows are padded for a product, a few cost as one
        rows = np.arange(len(together)).reshape(copies.shape[:2])
        return _named([select_rows(together, own) for own in rows], encode)
    try:
        if known is None or not _describes(known, model):
            raise StaleEncoder
        results = adapter.predict_copies(network, images, known)  # it is checked while the graph runs
    except StaleEncoder:
        known = _encoder(model, names, plain)
        results = adapter.predict_copies(network, images, known)
    return _named(results, known.encode)


def _named(results: Sequence[AdaptationResult], encode: nn.Module | None) -> list[CopyResult]:
    assert isinstance(encode, CopyEncoder)
    return [CopyResult(*one) for one in zip(results, encode.weights, encode.names, strict=True)]


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
