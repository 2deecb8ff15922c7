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
    name: str = ""
    """Of the transform that made it; the samples themselves have none."""


class CopyResult(NamedTuple):
    """Predictions on one copy of the samples, its weight in the average, and its transform."""

    result: AdaptationResult
    weight: float
    name: str = ""


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
        encoder: of the samples and their copies.
        batches: uint8 images, in order.
        after: from the encoder's features to those that are wanted.
    """
    parts = [after(encoder.encode(images)) for images in batches]
    if not parts:
        return {}
    result: dict[str, list[CopyFeatures]] = {}
    for name, weight, feature in zip(encoder.names, encoder.weights, torch.cat(parts, 1)):
        result.setdefault(name, []).append(CopyFeatures(feature, weight, name))
    return result


def levels(names: str, thresholds: Sequence[float]) -> list[tuple[str, ...]]:
    """The transforms whose copies are averaged with the sample at each level of a cascade, all at the last.

    The first threshold is for the sample alone, each further one for one more transform.

    >>> levels("hflip+crop+adain", (0.9, 0.8))
    [('',), ('', 'hflip'), ('', 'hflip', 'crop', 'adain')]
    """
    every = ("", *parse_transforms(names))
    return [*(every[: place + 1] for place in range(min(len(thresholds), len(every) - 1))), every]


def lead(probabilities: np.ndarray) -> np.ndarray:
    """Probability of the first class among the two most probable ones, (n, classes) -> (n,).

    Copies change a label where another class is nearly as probable as the first, however much probability the
    other classes have together.

    >>> lead(np.array([[0.6, 0.2, 0.2], [0.5, 0.5, 0.0]])).round(2).tolist()
    [0.75, 0.5]
    """
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    return first / (first + second)


def in_doubt(result: AdaptationResult, threshold: float) -> np.ndarray:
    """Which samples need more copies, (n,): those whose prediction so far has less lead than this."""
    return lead(result.probabilities) < threshold


def level_average(copies: Sequence[CopyResult], level: Sequence[str]) -> AdaptationResult:
    """Average over the copies of some transforms, in their order: the bits do not depend on when and with
    which others a copy was computed."""
    chosen = [copy for name in level for copy in copies if copy.name == name]
    return average([copy.result for copy in chosen], [copy.weight for copy in chosen])


def stop_early(
    copies: Sequence[CopyResult], names: str, thresholds: Sequence[float] = ()
) -> AdaptationResult:
    """The average at the first level of a cascade at which a sample is not in doubt, else over all copies.

    Args:
        copies: predictions on the samples and on all copies.
        names: of the transforms, joined by +.
        thresholds: of the levels, see `levels` and `validation.cascade`; none averages over all copies.
    """
    found, (*early, last) = [], levels(names, thresholds)
    for level, threshold in zip(early, thresholds):
        here = level_average(copies, level)
        doubt = in_doubt(here, threshold)
        if not doubt.any():  # one sample alone often stops at once
            result = here
            break
        found.append((here, doubt))
    else:
        result = level_average(copies, last)
    for here, doubt in reversed(found):
        result = result if doubt.all() else replace_rows(here, doubt, select_rows(result, doubt))
    return result


def stopped_shares(copies: Sequence[CopyResult], names: str, thresholds: Sequence[float]) -> list[float]:
    """Share of the samples that stop at each level of a cascade, without the last."""
    left, shares = np.ones(len(copies[0].result), dtype=bool), []
    for level, threshold in zip(levels(names, thresholds), thresholds):
        stops = left & ~in_doubt(level_average(copies, level), threshold)
        shares.append(float(stops.mean()))
        left &= ~stops
    return shares


def flat(copies: Mapping[str, Sequence[CopyFeatures]]) -> list[CopyFeatures]:
    """All copies in one list, the samples themselves first."""
    return [copy for part in copies.values() for copy in part]


def predict_each(
    network: Network, copies: Sequence[CopyFeatures], settings: AdaptSettings
) -> list[CopyResult]:
    """Adapt every copy."""
    adapter = EnergyAdaptation(settings)
    return [CopyResult(adapter(network, copy.feature), copy.weight, copy.name) for copy in copies]


def predict_copies(
    network: Network,
    copies: Sequence[CopyFeatures],
    settings: AdaptSettings,
    names: str,
    thresholds: Sequence[float] = (),
) -> AdaptationResult:
    """Adapt every copy and average, see `stop_early`."""
    found = stop_early(predict_each(network, copies, settings), names, thresholds)
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
        return predict_copies(network, copies, AdaptSettings().off(), self.transforms)
