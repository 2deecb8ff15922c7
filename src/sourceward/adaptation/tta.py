"""Test-time augmentation: predict on a sample and on transformed copies of it, and average.

`copies.CopyEncoder` makes and encodes the copies, `average` averages. `Model.predict`, `evaluate`,
leave-one-domain-out validation, the bench and the adapter `tta` all use them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation.base import (
    ADAPTED,
    ADAPTERS,
    NOT_ADAPTED,
    AdaptationResult,
    image_preprocessing,
    replace_rows,
    select_rows,
)
from sourceward.adaptation.copies import CopyEncoder, Statistics
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.data.transforms import as_bytes, parse_transforms
from sourceward.functional.calibration import agreement
from sourceward.nn import Network
from sourceward.nn.backbones.preprocessing import denormalize
from sourceward.settings import AdaptSettings


class CopyFeatures(NamedTuple):
    """Features of one copy of the samples, and its weight in the average."""

    feature: Tensor
    weight: float


def average(results: Sequence[AdaptationResult], weights: Sequence[float]) -> AdaptationResult:
    """Average the probabilities over copies; energies and features are those of the sample itself.

    The agreement counts the predictions of every source about every copy.
    """
    if len(results) == 1:
        return results[0]
    share = np.asarray(weights) / np.sum(weights)

    def mean(name: str) -> np.ndarray:
        return sum(w * getattr(result, name) for w, result in zip(share, results))

    averaged = {name: mean(name).astype(np.float32) for name in ("probabilities", "per_source")}
    label, status = averaged["probabilities"].argmax(1), results[0].status
    agreed = sum(w * agreement(result.per_source, label) for w, result in zip(share, results))
    status = np.where(status == NOT_ADAPTED, ADAPTED, status)
    trusted = averaged["probabilities"].max(1)
    return replace(results[0], status=status, agreement=agreed, trust=trusted, **averaged)


def copy_features(
    encoder: CopyEncoder, batches: Iterable[Tensor], after: Callable[[Tensor], Tensor] = Tensor.float
) -> dict[str, list[CopyFeatures]]:
    """Features of the samples, under the name "", and of their copies by transform.

    Args:
        encoder: of one pass.
        batches: uint8 images, in order.
        after: from the encoder's features to those that are wanted.
    """
    parts = [after(encoder.encode(images)) for images in batches]
    if not parts:
        return {}
    result: dict[str, list[CopyFeatures]] = {}
    for name, weight, feature in zip(encoder.names, encoder.weights, torch.cat(parts, 1)):
        result.setdefault(name, []).append(CopyFeatures(feature, weight))
    return result


def in_doubt(plain: AdaptationResult, threshold: float | None) -> np.ndarray:
    """Which samples need copies, (n,): those whose prediction without copies is less probable than this.

    Args:
        plain: predictions without copies.
        threshold: see `validation.cascade`; None makes copies of every sample.
    """
    if threshold is None:
        return np.ones(len(plain), dtype=bool)
    return plain.probabilities.max(1) < threshold


def stop_early(
    plain: AdaptationResult, averaged: AdaptationResult, threshold: float | None
) -> AdaptationResult:
    """The average over the copies where a sample is in doubt, its own prediction where it is not."""
    doubt = in_doubt(plain, threshold)
    return averaged if doubt.all() else replace_rows(plain, doubt, select_rows(averaged, doubt))


def flat(copies: Mapping[str, Sequence[CopyFeatures]]) -> list[CopyFeatures]:
    """All copies in one list, the samples themselves first."""
    return [copy for part in copies.values() for copy in part]


def predict_copies(
    network: Network,
    copies: Sequence[CopyFeatures],
    settings: AdaptSettings,
    threshold: float | None = None,
) -> AdaptationResult:
    """Adapt every copy and average, for the samples that are in doubt."""
    adapter = EnergyAdaptation(settings)
    results = [adapter(network, copy.feature) for copy in copies]
    found = stop_early(results[0], average(results, [copy.weight for copy in copies]), threshold)
    return found.with_trust(settings.temperature)


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
        prepared, network = image_preprocessing(network), network.eval()
        assert network.backbone is not None
        encoder = CopyEncoder(network.backbone, prepared, self.transforms, Statistics.of(network))
        batches = [inputs] if isinstance(inputs, Tensor) else inputs
        images = (as_bytes(denormalize(batch, prepared.mean, prepared.std)) for batch in batches)
        copies = flat(copy_features(encoder, images, network.rescale))
        copies = copies or [CopyFeatures(network.scale.new_zeros(0, network.dim), 1.0)]  # no images
        return predict_copies(network, copies, AdaptSettings().off())
