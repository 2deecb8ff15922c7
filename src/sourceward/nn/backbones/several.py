"""Several backbones side by side: `--backbone a,b` concatenates the features of both.

Networks of different families fail on different domains. Images are normalised for the first network; every
other one gets them in its own normalisation. Each network's features are scaled to norm sqrt(width) for every
sample, so that none outweighs the others.
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
    """Concatenate the features of networks that read the same batch.

    Args:
        networks: at least one.
        scale, shift: (networks, 3), from the batch's normalisation to that of each network. The
            same when None.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, networks: Sequence[nn.Module], scale: Tensor | None = None, shift: Tensor | None = None
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(networks)
        same = torch.ones(len(networks), 3)
        self.register_buffer("scale", (same if scale is None else scale)[:, :, None, None])
        self.register_buffer("shift", (0 * same if shift is None else shift)[:, :, None, None])

    def forward(self, batch: Tensor) -> Tensor:
        own = zip(self.parts, self.scale.to(batch.dtype), self.shift.to(batch.dtype))
        found = [part(batch * scale + shift).flatten(1).float() for part, scale, shift in own]
        return torch.cat([normalize(feature) * feature.shape[1] ** 0.5 for feature in found], dim=1)


def join(backbones: Sequence[Backbone]) -> Backbone:
    """One backbone with the features of all; images are resized and cropped as the first one's are."""
    first = backbones[0]
    for other in backbones:
        if not isinstance(other.preprocessing, ImagePreprocessing):
            raise InputError(f"Expected image backbones to use side by side, but {other.spec} reads texts.")
        if tuple(other.preprocessing.size) != tuple(first.preprocessing.size):  # type: ignore[union-attr]
            raise InputError(
                f"Expected backbones that read images of one size, but {first.spec} and {other.spec} differ. "
                "Set `image_size`, or choose others."
            )
    architecture = {"parts": [_describe(backbone) for backbone in backbones]}
    network = Several([each.network for each in backbones], *_normalisations(backbones))
    parts = Parts(network, first.preprocessing, architecture)
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


def _normalisations(backbones: Sequence[Backbone]) -> tuple[Tensor, Tensor]:
    """What the first backbone's normalised images are multiplied by for each, and what is added then."""
    prepared: list[Any] = [backbone.preprocessing for backbone in backbones]
    mean, std = (torch.tensor([getattr(each, name) for each in prepared]) for name in ("mean", "std"))
    return std[0] / std, (mean[0] - mean) / std


def _describe(backbone: Backbone) -> dict[str, Any]:
    return {"family": backbone.family, "name": backbone.name, "architecture": backbone.architecture}
