"""Views: ask about the image as it came and about other looks at it, and average the answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sourceward.adapters.base import ADAPTERS, Unsuitable
from sourceward.adapters.memo import image_preprocessing
from sourceward.adapters.peer import Peer, Response, encoder, unadapted
from sourceward.data.views import STYLE, look_normalised, named_views
from sourceward.nn import Network


@ADAPTERS.register("views")
@dataclass(frozen=True)
class Views(Peer):
    """The mean answer over the image and views of it; nothing learns.

    Args:
        of: names in `data.views`, joined by +; each counts as much as the image itself.
    """

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"

    of: str = "flip+gray"

    def __post_init__(self) -> None:
        super().__post_init__()
        named_views(self.of, torch.zeros(()))

    def check(self, network: Network) -> None:
        super().check(network)
        image_preprocessing(network)
        if STYLE in self.of and network.styles is None:
            raise Unsuitable("This model knows no styles of its sources. Fit it again with this version.")

    @torch.no_grad()
    def stream(self, network: Network, batches: Iterator[Any]) -> Iterator[Response]:
        encode, looks = encoder(network), image_preprocessing(network)
        views = named_views(self.of, network.styles)
        for batch in batches:
            plain = unadapted(network, encode(batch))
            voices = [plain]
            for view in views:
                pictures = look_normalised(batch, view, looks.mean, looks.std)
                voices.append(_mean([unadapted(network, encode(picture)) for picture in pictures]))
            yield _mean(voices)._replace(feature=plain.feature)


def _mean(answers: list[Response]) -> Response:
    feature, vote, per_source = (torch.stack(values).mean(0) for values in zip(*answers))
    return Response(feature, vote, per_source)
