"""`CopyEncoder`: features of images and of their copies."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sourceward.adaptation.base import Unsuitable
from sourceward.data.loading import rows_per_pass
from sourceward.data.transforms import OWN, TRANSFORMS, Copy, make_copies, parse_transforms
from sourceward.nn import Network, Projected
from sourceward.nn.alone import encode_alone
from sourceward.nn.backbones import ImagePreprocessing
from sourceward.nn.feature_statistics import FeatureStatistics

WHY_NOT = {
    "amplitudes": "This model has no Fourier amplitudes of its sources: `fourier` needs a model that `fit` "
    "trained on images.",
    "feature_statistics": "This model has no feature statistics of its sources: `adain` needs a "
    "convolutional backbone that `fit` fine-tuned. Use other transforms.",
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


def check_transforms(names: str, statistics: Statistics) -> None:
    """Refuse transforms that need statistics which are not there."""
    for name in parse_transforms(names):
        needs = TRANSFORMS[name].needs
        if needs and getattr(statistics, needs) is None:
            raise Unsuitable(WHY_NOT[needs])


def copies_of(
    images: Tensor, names: str, statistics: Statistics, size: Sequence[int] | None = None
) -> Iterator[tuple[str, Copy]]:
    """The images themselves, under the name "", then every copy that the transforms make of them.

    Args:
        images: uint8 (batch, 3, height, width), on the statistics' device.
        names: of transforms, joined by +.
        statistics: of the sources.
        size: height and width of the copies; those of the images when None.
    """
    yield "", Copy(images, 1.0)
    for name in parse_transforms(names):
        for copy in make_copies(name, images, statistics.sources, statistics.amplitudes, size):
            yield name, copy


class CopyEncoder(nn.Module):
    """Encode uint8 images and their copies, copy by copy: (n, 3, h, w) -> (copies x n, dim).

    First come the copies that keep their own feature statistics, the images themselves before the others,
    then the AdaIN copies; `names` and `weights` say which is which. Copies that are as large as the images
    are rows of the same pass of the backbone; smaller ones, see `ImagePreprocessing.copy_size`, have a pass
    of their own. It is made of plain modules with constants, without hooks or state, for a CUDA graph or
    `torch.export`:

        encoder = CopyEncoder(network.backbone, preprocessing, "hflip+crop+adain", Statistics.of(network))
        feature = network.rescale(encoder(images)).unflatten(0, (len(encoder.weights), -1))

    The output is that of the backbone (after a projection that follows it).

    Args:
        backbone: an image backbone, or one followed by a projection. Its tensors are used, not copied.
        preprocessing: of the backbone; images already have its size.
        names: of transforms, joined by +.
        statistics: of the sources.
        plain: whether the images themselves are among the copies.
    """

    amplitudes: Tensor | None
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        preprocessing: ImagePreprocessing,
        names: str,
        statistics: Statistics,
        plain: bool = True,
    ) -> None:
        super().__init__()
        check_transforms(names, statistics)
        device = next((tensor.device for tensor in backbone.parameters()), torch.device("cpu"))
        blank = torch.zeros(1, len(preprocessing.mean), *preprocessing.size, dtype=torch.uint8, device=device)
        copies = [(name, copy) for name, copy in copies_of(blank, names, statistics) if name or plain]
        copies = sorted(copies, key=lambda pair: pair[1].source != OWN)
        self.names = tuple(name for name, _ in copies)
        self.weights = tuple(copy.weight for _, copy in copies)
        self.size, self.sources = preprocessing.copy_size, statistics.sources
        self.apart = plain and bool(names) and self.size != tuple(preprocessing.size)
        """Whether the images have a pass before that of their copies."""
        toward = [copy.source for _, copy in copies if copy.source != OWN]
        self.own = len(copies) - len(toward) - self.apart
        """Rows of the copies' pass that keep their own statistics, for each image."""
        self.register_buffer("amplitudes", statistics.amplitudes, persistent=False)
        for name, values in (("mean", preprocessing.mean), ("std", preprocessing.std)):
            self.register_buffer(name, torch.tensor(values, device=device).view(-1, 1, 1), persistent=False)
        self.given = backbone, preprocessing, statistics  # a tuple, so that modules are not listed twice
        self._alone: tuple[nn.Module, list[Callable[[Tensor], Tensor]]] | None = None
        self.first, self.backbone = backbone if self.apart else None, backbone
        if toward:
            assert statistics.feature_statistics is not None
            changed = statistics.feature_statistics.applied(_inner(backbone), self.own, toward)
            self.backbone = _projected_as(backbone, changed)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Features (copies x n, dim) of uint8 images (n, 3, h, w)."""
        feature = self.backbone(self._normalized(self.pixels(images)))
        return feature if self.first is None else torch.cat([self.first(self._normalized(images)), feature])

    def _normalized(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self.mean) / self.std

    def pixels(self, images: Tensor) -> Tensor:
        """The rows of the copies' pass, uint8."""
        found = []
        for name in dict.fromkeys(self.names):
            if name:
                copies = make_copies(name, images, self.sources, self.amplitudes, self.size)
                found += [copy.images for copy in copies]
            elif not self.apart:
                found.append(images)
        return found[0] if len(found) == 1 else torch.cat(found)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Features (copies, n, dim) of any number of images; on CUDA some at a time, and bfloat16 inside.

        Args:
            images: uint8 (n, 3, h, w).
        """
        device, parts = self.mean.device, []
        if device.type == "cpu":
            return self._encode_alone(images)
        step = max(rows_per_pass(device) // len(self.weights), 1)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            for some in images.to(device).split(step):
                parts.append(self(some).float().unflatten(0, (len(self.weights), -1)))
        return torch.cat(parts, 1)

    def _encode_alone(self, images: Tensor) -> Tensor:
        """Features (copies, n, dim), each copy alone in its pass, and the copies of `adain` in one: the bits
        of a feature do not depend on the other transforms."""
        backbone, preprocessing, statistics = self.given
        inner, alone = _inner(backbone), self._alone
        if alone is None or alone[0] is not inner:
            names = dict.fromkeys(self.names)
            each: list[Callable[[Tensor], Tensor]] = [
                CopyEncoder(inner, preprocessing, name, statistics, not name)._each for name in names
            ]
            self._alone = alone = inner, each
        passes = [(own, image) for image in images.split(1) for own in alone[1]]
        found, count = encode_alone(passes), len(alone[1])
        together = [torch.cat(found[i : i + count]) for i in range(0, len(found), count)]
        feature = torch.stack(together, 1).float()
        return backbone.project(feature) if isinstance(backbone, Projected) else feature

    def _each(self, image: Tensor) -> Tensor:
        """Features of the copies of an image, each alone in its pass; those of `adain` in one."""
        rows = self._normalized(self.pixels(image))
        return torch.cat([self.backbone(row) for row in rows.split(1 if self.own else len(rows))])


def _inner(backbone: nn.Module) -> nn.Module:
    """The backbone without the projection that may follow it."""
    inner = backbone.backbone if isinstance(backbone, Projected) else backbone
    assert inner is not None
    return inner


def _projected_as(backbone: nn.Module, changed: nn.Module) -> nn.Module:
    """A changed copy of what `_inner` returned, followed by the projection of this backbone."""
    return (Projected(changed, backbone.projection) if isinstance(backbone, Projected) else changed).eval()
