"""Test-time augmentation: predict on a sample and on transformed copies of it, and average.

`copies_of` makes the copies, `average` averages. `Model.predict`, `evaluate`,
leave-one-domain-out validation, the bench and the adapter `tta` all use them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTED, ADAPTERS, NOT_ADAPTED, AdaptationResult, Unsuitable
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.adaptation.images import image_preprocessing, inner_backbone
from sourceward.data.transforms import OWN, TRANSFORMS, Copy, as_bytes, make_copies, parse_transforms
from sourceward.nn import Network
from sourceward.nn.backbones.preprocessing import denormalize, normalize
from sourceward.nn.feature_statistics import FeatureStatistics
from sourceward.settings import AdaptSettings

T = TypeVar("T")

WHY_NOT = {
    "amplitudes": "This model has no Fourier amplitudes of its sources: `fourier` needs a model that `fit` "
    "trained on images.",
    "feature_statistics": "This model has no feature statistics of its sources: `adain` needs a "
    "convolutional backbone. Use other transforms.",
}


class Statistics(NamedTuple):
    """What transforms need to know about the sources."""

    sources: int
    amplitudes: Tensor | None = None
    """(sources, 3, height, width // 2 + 1), mean Fourier amplitudes."""
    feature_statistics: FeatureStatistics | None = None
    """Of the backbone's early feature maps."""

    @classmethod
    def of(cls, network: Network) -> "Statistics":
        return cls(network.sources, network.amplitudes, network.feature_statistics)


class CopyFeatures(NamedTuple):
    """Features of one copy of the samples, and its weight in the average."""

    feature: Tensor
    weight: float


def check_transforms(names: str, statistics: Statistics) -> None:
    """Refuse transforms that need statistics which are not there."""
    for name in parse_transforms(names):
        needs = TRANSFORMS[name].needs
        if needs and getattr(statistics, needs) is None:
            raise Unsuitable(WHY_NOT[needs])


def copies_of(images: Tensor, names: str, statistics: Statistics) -> Iterator[tuple[str, Copy]]:
    """The images themselves, under the name "", then every copy that the transforms make of them.

    Args:
        images: uint8 (batch, 3, height, width), on the statistics' device.
        names: of transforms, joined by +.
        statistics: of the sources.
    """
    yield "", Copy(images, 1.0)
    for name in parse_transforms(names):
        for copy in make_copies(name, images, statistics.sources, statistics.amplitudes):
            yield name, copy


def apply_copy(copy: Copy, predict: Callable[[Tensor], T], statistics: Statistics, backbone: Any) -> T:
    """`predict` on the images of a copy, under AdaIN where it has a source."""
    if copy.source == OWN:
        return predict(copy.images)
    assert statistics.feature_statistics is not None
    with statistics.feature_statistics.adain(backbone, copy.source):
        return predict(copy.images)


def average(results: Sequence[AdaptationResult], weights: Sequence[float]) -> AdaptationResult:
    """Average the probabilities over copies; energies and features are those of the sample itself."""
    if len(results) == 1:
        return results[0]
    share = np.asarray(weights) / np.sum(weights)

    def mean(name: str) -> np.ndarray:
        return sum(w * getattr(result, name) for w, result in zip(share, results))

    averaged = {name: mean(name).astype(np.float32) for name in ("probabilities", "per_source")}
    status = results[0].status
    return replace(results[0], status=np.where(status == NOT_ADAPTED, ADAPTED, status), **averaged)


@torch.no_grad()
def copy_features(
    names: str,
    statistics: Statistics,
    backbone: Any,
    encode: Callable[[Tensor], Tensor],
    batches: Iterable[Tensor],
) -> dict[str, list[CopyFeatures]]:
    """Features of the samples, under the name "", and of their copies by transform.

    Args:
        names: of transforms, joined by +.
        statistics: of the sources.
        backbone: whose early feature maps AdaIN changes.
        encode: from uint8 images to features.
        batches: uint8 images, in order.
    """
    found: dict[tuple[str, int], list[Tensor]] = {}
    weights: dict[tuple[str, int], float] = {}

    def run(images: Tensor) -> Tensor:
        kind = images.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            return encode(images).float()

    for images in batches:
        for number, (name, copy) in enumerate(copies_of(images, names, statistics)):
            found.setdefault((name, number), []).append(apply_copy(copy, run, statistics, backbone))
            weights[name, number] = copy.weight
    result: dict[str, list[CopyFeatures]] = {}
    for key, parts in found.items():
        result.setdefault(key[0], []).append(CopyFeatures(torch.cat(parts), weights[key]))
    return result


def flat(copies: Mapping[str, Sequence[CopyFeatures]]) -> list[CopyFeatures]:
    """All copies in one list, the samples themselves first."""
    return [copy for part in copies.values() for copy in part]


def predict_copies(
    network: Network, copies: Sequence[CopyFeatures], settings: AdaptSettings
) -> AdaptationResult:
    """Adapt every copy and average."""
    adapter = EnergyAdaptation(settings)
    return average([adapter(network, copy.feature) for copy in copies], [copy.weight for copy in copies])


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
        check_transforms(self.transforms, Statistics.of(network))
        mean, std = prepared.mean, prepared.std
        batches = [inputs] if isinstance(inputs, Tensor) else inputs

        def to_bytes(batch: Tensor) -> Tensor:
            return as_bytes(denormalize(batch, mean, std))

        def encode(images: Tensor) -> Tensor:
            return network.features(normalize(images, mean, std))

        network.eval()
        backbone, statistics = inner_backbone(network), Statistics.of(network)
        images = map(to_bytes, batches)
        copies = copy_features(self.transforms, statistics, backbone, encode, images)
        return predict_copies(network, flat(copies), AdaptSettings().off())
