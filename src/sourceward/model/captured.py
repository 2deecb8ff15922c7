"""Encoders of a model's images, and prediction from pixels as one captured CUDA graph."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation.base import AdaptationResult, replace_rows, select_rows
from sourceward.adaptation.copies import CopyEncoder, Statistics
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.adaptation.tta import CopyResult, in_doubt, level_average, levels, stop_early
from sourceward.data.transforms import TRANSFORMS, parse_transforms
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


MOST_STEMS = 128
"""Images on a CPU whose stems are kept for later levels: 3 MB each with ResNet-50."""


class Stems(NamedTuple):
    """On a CPU, what images share with their AdaIN copies: see `CopyEncoder.stems`."""

    encode: CopyEncoder
    maps: list[Tensor]


def adapt_images(
    model: "Model",
    adapter: EnergyAdaptation,
    images: Tensor,
    names: str,
    thresholds: Sequence[float],
    known: Sequence[CopyResult] = (),
    stems: Stems | None = None,
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
        stems: of the images, computed with the images themselves.
    """
    stems = stems if known else _stems(model, images, names)
    images, every, made = images.to(model.device), levels(names, thresholds), {copy.name for copy in known}
    level = next(place for place, some in enumerate(every) if not made.issuperset(some))
    if has_few(images, FEW if known else ONE_PASS):
        level = len(every) - 1
    wanted = [name for name in every[level] if name and name not in made]
    known = [*known, *predict_images(model, adapter, images, "+".join(wanted), "" not in made, stems)]
    if level == len(every) - 1:
        return stop_early(known, names, thresholds)
    here = level_average(known, every[level])
    doubt = in_doubt(here, thresholds[level])
    if not doubt.any():
        return here
    rest = [copy._replace(result=select_rows(copy.result, doubt)) for copy in known]
    places = doubt.nonzero()[0]
    rows = images[torch.from_numpy(places).to(images.device)]  # a mask would wait for the device
    if stems is not None:
        stems = stems._replace(maps=[stems.maps[place] for place in places])
    return replace_rows(here, doubt, adapt_images(model, adapter, rows, names, thresholds, rest, stems))


def has_few(images: Tensor, limit: int) -> bool:
    """Whether all copies of the images take about the time of some of them."""
    return images.is_cuda and len(images) <= limit


def _stems(model: "Model", images: Tensor, names: str) -> Stems | None:
    needed = any(TRANSFORMS[name].needs == "feature_statistics" for name in parse_transforms(names))
    if model.device.type != "cpu" or not needed or not 0 < len(images) <= MOST_STEMS:
        return None
    encode = copy_encoder(model, names)
    maps = encode.stems(images)
    return None if maps is None else Stems(encode, maps)


def predict_images(
    model: "Model",
    adapter: EnergyAdaptation,
    images: Tensor,
    names: str = "",
    plain: bool = True,
    stems: Stems | None = None,
) -> list[CopyResult]:
    """Adapt uint8 images of the model's own size and their copies in one pass.

    Args:
        model: of images.
        adapter: of features.
        images: (n, 3, height, width).
        names: transforms, joined by +.
        plain: whether the images themselves are among the copies; they are the first then.
        stems: of the images, where they are known.
    """
    network, known = model.network, model.__dict__.get(KEY, {}).get((names, plain))
    if model.device.type != "cuda":
        encode, maps = stems or (copy_encoder(model, names, plain), None)
        wanted = [*([""] if plain else []), *parse_transforms(names)]
        with torch.no_grad():
            copies = network.rescale(encode.encode(images, wanted, maps))
        together = adapter(network, copies.flatten(0, 1))  # rows are padded for a product, a few cost as one
        rows = np.arange(len(together)).reshape(copies.shape[:2])
        return _named([select_rows(together, own) for own in rows], encode, wanted)
    try:
        if known is None or not _describes(known, model):
            raise StaleEncoder
        results = adapter.predict_copies(network, images, known)  # it is checked while the graph runs
    except StaleEncoder:
        known = _encoder(model, names, plain)
        results = adapter.predict_copies(network, images, known)
    assert isinstance(known.encode, CopyEncoder)
    return _named(results, known.encode, known.encode.names)


def _named(
    results: Sequence[AdaptationResult], encode: CopyEncoder, names: Sequence[str]
) -> list[CopyResult]:
    copies = [pair for pair in zip(encode.weights, encode.names) if pair[1] in names]
    return [CopyResult(result, *pair) for result, pair in zip(results, copies, strict=True)]


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
