"""Prediction from pixels as one captured CUDA graph: same results, one launch."""

from contextlib import suppress
from typing import TYPE_CHECKING

from torch import Tensor

from sourceward.adaptation.base import AdaptationResult
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.nn import folded
from sourceward.nn.encoder import ImageEncoder, StaleEncoder

if TYPE_CHECKING:
    from sourceward.model.model import Model

KEY = "_image_encoder"
"""Where a model keeps its encoder."""


def adapt_captured(model: "Model", adapter: EnergyAdaptation, images: Tensor) -> AdaptationResult:
    """Adapt uint8 images of the model's own size, on CUDA."""
    known = model.__dict__.get(KEY)
    if known is not None and _describes(known, model):
        with suppress(StaleEncoder):  # it is checked while the prediction is computed
            return adapter.predict(model.network, images, known)
    return adapter.predict(model.network, images, _encoder(model))


def forget_encoder(model: "Model") -> None:
    """Drop the encoder, and with it the memory of its graphs."""
    model.__dict__.pop(KEY, None)


def _encoder(model: "Model") -> ImageEncoder:
    known = model.__dict__.get(KEY)
    if known is None or not _describes(known, model) or not known.valid():
        known = ImageEncoder(model.network, model.preprocessing)
        model.__dict__[KEY] = known
        folded(model.network).graphs.clear()
    return known


def _describes(encoder: ImageEncoder, model: "Model") -> bool:
    """Whether it was made of this network and its preprocessing."""
    return encoder.network is model.network and encoder.preprocessing == model.preprocessing
