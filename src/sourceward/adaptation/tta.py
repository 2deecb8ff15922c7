"""Views: ask about the image as it came and about other looks at it, and average the answers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTERS, Unsuitable
from sourceward.adaptation.baselines.base import Baseline, BatchPrediction, unadapted
from sourceward.adaptation.baselines.classifier import encoder
from sourceward.adaptation.images import image_preprocessing
from sourceward.data.transforms import (
    ADAIN,
    STYLE,
    TURN,
    VIEWS,
    View,
    look_normalised,
    styled,
    transform_names,
)
from sourceward.nn import Network

T = TypeVar("T")
Look = Callable[[Tensor, View], Iterable[Tensor]]
"""`look` or `look_normalised`, whichever suits the images."""


@ADAPTERS.register("views")
@dataclass(frozen=True)
class Views(Baseline):
    """The mean answer over the image and views of it; nothing learns.

    Args:
        of: names in `data.views`, joined by +; each, and each turn, counts as much as the image itself.
    """

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"

    of: str = "flip+gray"

    def __post_init__(self) -> None:
        super().__post_init__()
        transform_names(self.of)

    def check(self, network: Network) -> None:
        super().check(network)
        image_preprocessing(network)
        check_transforms(self.of, network)

    @torch.no_grad()
    def predict_batches(self, network: Network, batches: Iterator[Any]) -> Iterator[BatchPrediction]:
        features, looks = encoder(network), image_preprocessing(network)
        seen = partial(look_normalised, mean=looks.mean, std=looks.std)

        def ask(images: Tensor) -> BatchPrediction:
            return unadapted(network, features(images))

        for batch in batches:
            plain, voices = ask(batch), with_tta(self.of, network, ask, batch, seen)
            yield _mean([plain, *map(_mean, voices)])._replace(feature=plain.feature)


def check_transforms(names: str, network: Network) -> None:
    """Refuse views that a network cannot be asked about."""
    known = {STYLE: network.amplitudes, ADAIN: network.feature_statistics}
    for name in transform_names(names):
        if known.get(name, True) is None:
            why = {
                STYLE: "This model knows no styles of its sources. Fit it again with this version.",
                ADAIN: "This model knows no feature_statistics of its sources: only a convolutional backbone that "
                "this version fine-tuned does. Ask about other views, or fit it again without --freeze.",
            }
            raise Unsuitable(why[name])


def with_tta(
    names: str, network: Network, ask: Callable[[Tensor], T], images: Tensor, look: Look
) -> Iterator[list[T]]:
    """What is answered for every picture of each voice: a view is one, and each turn of the view `turn`.

    Args:
        names: of the views, joined by +.
        network: knows styles and feature_statistics of its sources.
        ask: answers for images.
        images: as they came.
        look: makes the pictures of a view.
    """
    for name in transform_names(names):
        if name == ADAIN:
            yield [_toward(network, source, ask, images) for source in range(network.sources)]
        else:
            view = VIEWS[name] if name != STYLE else styled(network.amplitudes)  # type: ignore[arg-type]
            answers = [ask(picture) for picture in look(images, view)]
            yield from [[answer] for answer in answers] if name == TURN else [answers]


def _toward(network: Network, source: int, ask: Callable[[Tensor], T], images: Tensor) -> T:
    with network.toward(source):
        return ask(images)


def _mean(answers: list[BatchPrediction]) -> BatchPrediction:
    feature, probability, per_source = (torch.stack(values).mean(0) for values in zip(*answers))
    return BatchPrediction(feature, probability, per_source)
