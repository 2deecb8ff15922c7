"""Views: the same picture looked at another way, or moved toward the style of a source.

An image's phase spectrum shows what is on it, its amplitude spectrum in what style: the view `style` takes
the image half way to the mean amplitudes of each source. It is to images what the walk is to features, and
follows test-time Fourier style calibration (Zhao et al., IJCAI 2022), which does so inside a network.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sourceward._util.errors import InputError, unknown_name
from sourceward.data.image_ops import grayscale as gray
from sourceward.data.image_ops import mix_amplitude_toward as toward_amplitude
from sourceward.data.image_ops import rotate as turn
from sourceward.data.image_ops import sketch
from sourceward.nn.backbones.preprocessing import denormalize as pixels
from sourceward.nn.backbones.preprocessing import normalize as normalise

View = Callable[[Tensor], list[Tensor]]
"""From pixels in [0, 1], (batch, 3, height, width), to one or several pictures of each."""

ZOOM = 0.85
"""Share of each side that a closer look keeps."""


def zoom(images: Tensor) -> Tensor:
    """The middle of the images, as large as they are.

    >>> zoom(torch.arange(8.0).expand(1, 3, 8, 8) / 8)[0, 0, 0, [0, -1]]
    tensor([0.1250, 0.7500])
    """
    size = images.shape[-2:]
    (top, tall), (left, wide) = (((side - int(ZOOM * side)) // 2, int(ZOOM * side)) for side in size)
    middle = images[..., top : top + tall, left : left + wide]
    return F.interpolate(middle, size=tuple(size), mode="bilinear", antialias=True).clamp_(0, 1)


TURN = "turn"
TURNS = (-30.0, -15.0, 15.0, 30.0)
"""Degrees; each of them counts as much as the image itself."""


def turned(images: Tensor) -> list[Tensor]:
    """The images turned about their middle, either way."""
    return [turn(images, images.new_full((len(images),), degrees)) for degrees in TURNS]


VIEWS: dict[str, View] = {
    "flip": lambda images: [images.flip(-1)],
    "zoom": lambda images: [zoom(images)],
    "gray": lambda images: [gray(images).expand_as(images)],
    TURN: turned,
    "sketch": lambda images: [sketch(images, torch.full_like(images[:, 0, 0, 0], 2.0))],
}

STYLE = "style"
SHARE = 0.5
"""Of the way to a source's amplitudes."""

ADAIN = "adain"
"""The picture stays, and the backbone sees it otherwise: see `nn.feature_statistics`."""

NAMES = (*VIEWS, STYLE, ADAIN)


def transform_names(names: str) -> list[str]:
    """Names of views, joined by +; none of "".

    >>> transform_names("flip+style")
    ['flip', 'style']
    """
    found = names.split("+") if names else []
    for name in found:
        if name not in NAMES:
            raise unknown_name("view", name, NAMES)
    if len(set(found)) < len(found):
        raise InputError(f"Expected each view once, but got '{names}'.")
    return found


def styled(styles: Tensor) -> View:
    """The view `style`, of (sources, 3, height, width // 2 + 1): see `mean_amplitude`."""
    return lambda images: [toward_amplitude(images, style, SHARE) for style in styles]


def mean_amplitude(images: Iterable[Tensor]) -> Tensor:
    """Of batches of uint8 images: (3, height, width // 2 + 1).

    >>> mean_amplitude([torch.full((2, 3, 2, 2), 255, dtype=torch.uint8)])[0]
    tensor([[4., 0.],
            [0., 0.]])
    """
    count, total = 0, torch.zeros(())
    for batch in images:
        count, total = count + len(batch), torch.fft.rfft2(batch.float() / 255).abs().sum(0) + total
    return total / count


def look(images: Tensor, view: View) -> Iterator[Tensor]:
    """A view of uint8 images, uint8 too.

    >>> [int(x.sum()) for x in look(torch.full((1, 3, 2, 2), 7, dtype=torch.uint8), VIEWS["gray"])]
    [84]
    """
    for picture in view(images.float() / 255):
        yield as_bytes(picture)


def as_bytes(images: Tensor) -> Tensor:
    """[0, 1] to uint8."""
    return (images * 255).round().to(torch.uint8)


def look_normalised(
    images: Tensor, view: View, mean: Sequence[float], std: Sequence[float]
) -> Iterator[Tensor]:
    """A view of images that are normalised, normalised too; the same pictures as those of their bytes."""
    for picture in look(as_bytes(pixels(images, mean, std)), view):
        yield normalise(picture, mean, std)
