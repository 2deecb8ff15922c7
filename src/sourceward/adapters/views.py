"""Views: ask about the sample as it came and about other looks at it, and average the answers.

The oldest of test-time methods, and what any other that looks at a single image has to beat.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sourceward.adapters.base import ADAPTERS
from sourceward.adapters.classifier import voter_logits
from sourceward.adapters.memo import image_preprocessing
from sourceward.adapters.peer import Peer, Response, encoder, response
from sourceward.data.views import look_normalised, named_views
from sourceward.nn import Network


@ADAPTERS.register("views")
@dataclass(frozen=True)
class Views(Peer):
    """The mean answer over the image and views of it; nothing learns.

    Args:
        of: names in `data.views.VIEWS`, joined by +.
    """

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"

    of: str = "flip+gray"

    def __post_init__(self) -> None:
        super().__post_init__()
        named_views(self.of)

    def check(self, network: Network) -> None:
        super().check(network)
        image_preprocessing(network)

    @torch.no_grad()
    def stream(self, network: Network, batches: Iterator[Any]) -> Iterator[Response]:
        encode, looks, views = encoder(network), image_preprocessing(network), named_views(self.of)
        for batch in batches:
            seen = [look_normalised(batch, view, looks.mean, looks.std) for view in views]
            features = [encode(images) for images in (batch, *seen)]
            answers = [response(feature, voter_logits(network, feature)) for feature in features]
            feature, vote, per_source = zip(*answers)
            yield Response(feature[0], torch.stack(vote).mean(0), torch.stack(per_source).mean(0))

    def _title(self) -> str:
        return "views"
