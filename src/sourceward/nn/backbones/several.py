"""Several backbones side by side: `--backbone a,b` concatenates the features of both.

Networks of different families fail on different domains. Each network's features are scaled to norm
sqrt(width) for every sample, so that none outweighs the others.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sourceward._util.errors import InputError
from sourceward.nn.backbones.backbone import SEVERAL, Backbone, Parts
from sourceward.nn.backbones.preprocessing import ImagePreprocessing


class Several(nn.Module):
    """Concatenate the features of networks that read the same batch."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(networks)

    def forward(self, batch: Tensor) -> Tensor:
        found = [part(batch).flatten(1).float() for part in self.parts]
        return torch.cat([normalize(feature) * feature.shape[1] ** 0.5 for feature in found], dim=1)


def join(backbones: Sequence[Backbone]) -> Backbone:
    """One backbone with the features of all; images go to all of them prepared alike."""
    first = backbones[0]
    for other in backbones:
        if not isinstance(other.preprocessing, ImagePreprocessing):
            raise InputError(f"Expected image backbones to use side by side, but {other.spec} reads texts.")
        if _reads(other) != _reads(first):
            raise InputError(
                f"Expected backbones that read images alike, but {first.spec} and {other.spec} differ in "
                "size or normalisation. Set `image_size`, or choose others."
            )
    architecture = {"parts": [_describe(backbone) for backbone in backbones]}
    parts = Parts(Several([each.network for each in backbones]), first.preprocessing, architecture)
    name = ",".join(each.spec for each in backbones)
    return Backbone(parts, family=SEVERAL, name=name, dim=sum(each.dim for each in backbones))


def split_weights(weights: Any, count: int) -> list[Any]:
    """The weights of each backbone: `default` and none are for all, files are joined by commas.

    >>> split_weights("a.safetensors,b.safetensors", 2), split_weights(None, 2)
    (['a.safetensors', 'b.safetensors'], [None, None])
    """
    if weights is None or weights == "default":
        return [weights] * count
    files = str(weights).split(",")
    if len(files) != count:
        raise InputError(
            f"Expected `weights` to be 'default', none or {count} files joined by commas, one for each "
            f"backbone, but got {weights!r}."
        )
    return [file if file.lower() != "none" else None for file in files]


def _reads(backbone: Backbone) -> tuple[Any, ...]:
    prepared: Any = backbone.preprocessing
    return tuple(prepared.size), tuple(prepared.mean), tuple(prepared.std)


def _describe(backbone: Backbone) -> dict[str, Any]:
    return {"family": backbone.family, "name": backbone.name, "architecture": backbone.architecture}
