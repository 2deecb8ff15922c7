"""Encoders of a model's images, and prediction from pixels as one captured CUDA graph."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation.base import AdaptationResult, replace_rows, select_rows
from sourceward.adaptation.copies import CopyEncoder, Statistics
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.adaptation.tta import CopyResult, lead, level_average, levels, stop_early
from sourceward.nn import folded
from sourceward.nn.encoder import ImageEncoder, StaleEncoder
from sourceward.nn.kept import forget

if TYPE_CHECKING:
    from sourceward.model.model import Model

KEY = "_image_encoders"
"""Where a model keeps its encoders."""

FEW = 16
"""Images in doubt on CUDA whose further copies are all computed at once: a few rows take the time of one."""


class Pending(NamedTuple):
    """Predictions on copies that a CUDA device may still be computing; both functions wait for it."""

    copies: Callable[[], list[CopyResult]]
    probabilities: Callable[[], np.ndarray]
    """Of the first copy."""


class Level(NamedTuple):
    """A level of a cascade for some of the images, under way."""

    place: int
    images: Tensor
    pending: Pending


def adapt_images(
    model: "Model", adapter: EnergyAdaptation, images: Tensor, names: str, thresholds: Sequence[float]
) -> AdaptationResult:
    """Adapt uint8 images of the model's own size, with copies of those that are in doubt.

    The result is that of `stop_early` on all copies of every image; this computes those that count.

    Args:
        model: of images.
        adapter: of features.
        images: (n, 3, height, width).
        names: transforms, joined by +.
        thresholds: see `Model.tta_thresholds`.
    """
    if not len(images):
        return adapter(model.network, model.network.scale.new_zeros(0, model.network.dim))
    every = levels(names, thresholds)

    def begin(done: int, images: Tensor) -> Level:
        """Start the level after `done`, or the last one where that takes no longer."""
        few = done >= 0 and has_few(images)
        place, made = len(every) - 1 if few else done + 1, every[done] if done >= 0 else ()
        wanted = "+".join(name for name in every[place] if name and name not in made)
        return Level(place, images, launch_images(model, adapter, images, wanted, done < 0))

    def end(level: Level, known: Sequence[CopyResult]) -> AdaptationResult:
        """The result of the images of a level; `known` are those of the levels before."""
        place, pending = level.place, level.pending
        if place == len(every) - 1:
            return stop_early([*known, *pending.copies()], names, thresholds)
        if place:
            probabilities = level_average([*known, *pending.copies()], every[place]).probabilities
        else:
            probabilities = pending.probabilities()
        doubt = lead(probabilities) < thresholds[place]
        following = begin(place, _rows(level.images, doubt)) if doubt.any() else None
        known = [*known, *pending.copies()]  # while the next level is computed
        here = level_average(known, every[place])
        if following is None:
            return here
        rest = [copy._replace(result=select_rows(copy.result, doubt)) for copy in known]
        return replace_rows(here, doubt, end(following, rest))

    return end(begin(-1, images.to(model.device)), ())


def _rows(images: Tensor, chosen: np.ndarray) -> Tensor:
    """The images that a mask names; a mask on the device would wait for it, and `images[rows]` copies byte by
    byte on a CPU."""
    return images.index_select(0, torch.from_numpy(chosen.nonzero()[0]).to(images.device))


def has_few(images: Tensor) -> bool:
    """Whether all copies of the images take about the time of some of them."""
    return images.is_cuda and len(images) <= FEW


def predict_images(
    model: "Model", adapter: EnergyAdaptation, images: Tensor, names: str = ""
) -> list[CopyResult]:
    """Adapt uint8 images of the model's own size and their copies together, the images first."""
    return launch_images(model, adapter, images, names).copies()


def launch_images(
    model: "Model", adapter: EnergyAdaptation, images: Tensor, names: str = "", plain: bool = True
) -> Pending:
    """`predict_images` that does not wait for a CUDA device.

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
        found = _named([select_rows(together, own) for own in rows], encode)
        return Pending(lambda: found, lambda: found[0].result.probabilities)
    try:
        if known is None or not _describes(known, model):
            raise StaleEncoder
        launched = adapter.launch(network, images, known)  # it is checked while the graph runs
    except StaleEncoder:
        known = _encoder(model, names, plain)
        launched = adapter.launch(network, images, known)
    own = known.encode
    assert isinstance(own, CopyEncoder)
    return Pending(cache(lambda: _named(launched.results(), own)), launched.probabilities)


def _named(results: Sequence[AdaptationResult], encode: CopyEncoder) -> list[CopyResult]:
    return [CopyResult(*one) for one in zip(results, encode.weights, encode.names, strict=True)]


def copy_encoder(model: "Model", names: str, plain: bool = True) -> CopyEncoder:
    """The encoder of a model's images and their copies."""
    encode = _encoder(model, names, plain).encode
    assert isinstance(encode, CopyEncoder)
    return encode


def forget_encoders(model: "Model") -> None:
    """Drop the encoders, and with them the memory of their graphs and of copies without batch norm."""
    model.__dict__.pop(KEY, None)
    forget(model.network)


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
