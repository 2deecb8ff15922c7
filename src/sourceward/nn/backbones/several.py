"""Several backbones side by side: `--backbone a,b` concatenates the features of both.

Networks of different families fail on different domains. Images come as they are, between 0 and 1; every
network gets them in its own normalisation, bit for bit as it gets them alone. Each network's features are
scaled to norm sqrt(width) for every sample, so that none outweighs the others.
"""

from collections.abc import Sequence
from dataclasses import replace
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
        mean, std: (networks, 3), the normalisation of each network.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        networks: Sequence[nn.Module],
        mean: Sequence[Sequence[float]],
        std: Sequence[Sequence[float]],
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(networks)
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values)[:, :, None, None], persistent=False)

    def forward(self, batch: Tensor) -> Tensor:
        return scale_and_join(self.raw(batch))

    def raw(self, batch: Tensor) -> list[Tensor]:
        """The features of each network as they are."""
        own = zip(self.parts, self.mean.to(batch.dtype), self.std.to(batch.dtype))
        return [part((batch - mean) / std).flatten(1).float() for part, mean, std in own]

    def joined(self, batch: Tensor) -> Tensor:
        """The features of each network as they are, side by side."""
        return torch.cat(self.raw(batch), dim=1)


def scale_and_join(features: Sequence[Tensor]) -> Tensor:
    """Features of several networks side by side, those of each scaled to norm sqrt(width)."""
    return torch.cat([normalize(feature) * feature.shape[1] ** 0.5 for feature in features], dim=1)


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
    prepared: list[Any] = [backbone.preprocessing for backbone in backbones]
    architecture = {"parts": [_describe(backbone) for backbone in backbones]}
    mean, std = [own.mean for own in prepared], [own.std for own in prepared]
    network = Several([each.network for each in backbones], mean, std)
    parts = Parts(network, replace(prepared[0], mean=(0.0,) * 3, std=(1.0,) * 3), architecture)
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


def split(backbone: Backbone) -> list[Backbone]:
    """The backbones that `join` joined, with the joined one's resizing and cropping; one alone is itself."""
    if not isinstance(backbone.network, Several):
        return [backbone]
    found = []
    for network, own in zip(backbone.network.parts, backbone.architecture["parts"]):
        mean, std = tuple(own["mean"]), tuple(own["std"])
        prepared = replace(backbone.preprocessing, mean=mean, std=std)  # type: ignore[arg-type]
        parts = Parts(network, prepared, own["architecture"])
        found.append(Backbone(parts, family=own["family"], name=own["name"], dim=own["dim"]))
    return found


def only(backbone: Backbone, places: Sequence[int]) -> Several:
    """Some of the networks side by side, which share their weights with the backbone."""
    whole: Any = backbone.network
    own = [backbone.architecture["parts"][place] for place in places]
    networks = [whole.parts[place] for place in places]
    few = Several(networks, [part["mean"] for part in own], [part["std"] for part in own])
    return few.to(backbone.device).eval()


def _describe(backbone: Backbone) -> dict[str, Any]:
    prepared: Any = backbone.preprocessing
    return {
        "family": backbone.family,
        "name": backbone.name,
        "architecture": backbone.architecture,
        "dim": backbone.dim,
        "mean": list(prepared.mean),
        "std": list(prepared.std),
    }
