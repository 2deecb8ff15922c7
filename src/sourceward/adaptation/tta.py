"""Test-time augmentation: predict on a sample and on transformed copies of it, and average.

One function makes the copies (`copies_of`), one averages (`average`). `Model.predict`, `evaluate`,
leave-one-domain-out validation, the bench and the adapter `tta` all use these two.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTERS, AdaptationResult, Unsuitable
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.data.augment import normalise
from sourceward.data.augmix import pixels
from sourceward.data.transforms import OWN, TRANSFORMS, Copy, as_bytes, make_copies, parse_transforms
from sourceward.nn import Network
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.nn.projection import Projected
from sourceward.settings import AdaptSettings

WHY_NOT = {
    "amplitudes": "This model has no Fourier amplitudes of its sources: `fourier` needs a model that `fit` "
    "trained on images.",
    "feature_statistics": "This model has no feature statistics of its sources: `adain` needs a "
    "convolutional backbone. Use other transforms.",
}


class CopyFeatures(NamedTuple):
    """Rescaled features of one copy of the samples, and its weight in the average."""

    feature: Tensor
    weight: float


def check_transforms(names: str, network: Network) -> None:
    """Refuse transforms that need statistics which a network does not have."""
    for name in parse_transforms(names):
        needs = TRANSFORMS[name].needs
        if needs and getattr(network, needs) is None:
            raise Unsuitable(WHY_NOT[needs])


def copies_of(images: Tensor, names: str, network: Network) -> Iterator[Copy]:
    """The images themselves, then every copy that the transforms make of them.

    Args:
        images: uint8 (batch, 3, height, width), on the network's device.
        names: of transforms, joined by +.
        network: holds the sources' amplitudes and feature statistics.
    """
    yield Copy(images, 1.0)
    for name in parse_transforms(names):
        yield from make_copies(name, images, network.sources, network.amplitudes)


def encode_copy(copy: Copy, network: Network, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """Features of one copy, under AdaIN where it asks for that."""
    if copy.source == OWN:
        return encode(copy.images)
    with network.adain(copy.source):
        return encode(copy.images)


def average(results: Sequence[AdaptationResult], weights: Sequence[float]) -> AdaptationResult:
    """Average the probabilities over copies; energies, features and status are those of the sample itself."""
    if len(results) == 1:
        return results[0]
    share = np.asarray(weights) / np.sum(weights)

    def mean(name: str) -> np.ndarray:
        return sum(w * getattr(result, name) for w, result in zip(share, results))  # type: ignore[return-value]

    averaged = {name: mean(name).astype(np.float32) for name in ("probabilities", "per_source")}
    return replace(results[0], **averaged)


@torch.no_grad()
def copy_features(
    names: str, network: Network, normalize: Callable[[Tensor], Any], batches: Iterator[Tensor]
) -> list[CopyFeatures]:
    """Rescaled features of all samples and of every copy of them.

    Args:
        names: of transforms, joined by +.
        network: with its backbone.
        normalize: from uint8 images to what the backbone takes.
        batches: uint8 images, in order.
    """
    found: list[list[Tensor]] = []
    weights: list[float] = []

    def encode(images: Tensor) -> Tensor:
        kind = images.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            return network.features(normalize(images)).float()

    for images in batches:
        copies = list(copies_of(images, names, network))
        weights = [copy.weight for copy in copies]
        found.append([encode_copy(copy, network, encode) for copy in copies])
    return [CopyFeatures(torch.cat(parts), weight) for parts, weight in zip(zip(*found), weights)]


def predict_copies(
    network: Network, copies: Sequence[CopyFeatures], settings: AdaptSettings
) -> AdaptationResult:
    """Adapt every copy and average."""
    adapter = EnergyAdaptation(settings)
    return average([adapter(network, copy.feature) for copy in copies], [copy.weight for copy in copies])


def inner_backbone(network: Network) -> Backbone | None:
    """The backbone itself, without a projection around it."""
    backbone = network.backbone
    inner = backbone.backbone if isinstance(backbone, Projected) else backbone
    return inner if isinstance(inner, Backbone) else None


def image_preprocessing(network: Network) -> ImagePreprocessing:
    """How the network's images are prepared; refused where it reads none."""
    preprocessing = getattr(inner_backbone(network), "preprocessing", None)
    if not isinstance(preprocessing, ImagePreprocessing):
        raise Unsuitable("This adapter changes images, and the model reads none.")
    return preprocessing


@ADAPTERS.register("tta")
@dataclass(frozen=True)
class TestTimeAugmentation:
    """Average the unadapted predictions on the image and on transformed copies of it.

    Args:
        transforms: names joined by +.
    """

    __test__: ClassVar[bool] = False
    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"

    transforms: str = "hflip+crop"

    def __post_init__(self) -> None:
        parse_transforms(self.transforms)

    def __call__(self, network: Network, inputs: Any) -> AdaptationResult:
        prepared = image_preprocessing(network)
        check_transforms(self.transforms, network)
        mean, std = prepared.mean, prepared.std
        batches = [inputs] if isinstance(inputs, Tensor) else inputs

        def to_bytes(batch: Tensor) -> Tensor:
            return as_bytes(pixels(batch, mean, std))

        def normalize(images: Tensor) -> Tensor:
            return normalise(images, mean, std)

        network.eval()
        copies = copy_features(self.transforms, network, normalize, map(to_bytes, batches))
        return predict_copies(network, copies, AdaptSettings().off())
