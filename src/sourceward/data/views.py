"""Views: the same picture looked at another way. Functions of pixels in [0, 1], (batch, 3, height, width)."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from sourceward.data.augment import gray, normalise, pencil
from sourceward.data.augmix import pixels
from sourceward.errors import InputError, unknown_name

View = Callable[[Tensor], Tensor]

VIEWS: dict[str, View] = {
    "flip": lambda images: images.flip(-1),
    "gray": lambda images: gray(images).expand_as(images),
    "pencil": lambda images: pencil(images, torch.full_like(images[:, 0, 0, 0], 2.0)),
}


def named_views(names: str) -> list[View]:
    """Views by name.

    >>> len(named_views("flip+gray"))
    2
    """
    found = names.split("+")
    for name in found:
        if name not in VIEWS:
            raise unknown_name("view", name, VIEWS)
    if len(set(found)) < len(found):
        raise InputError(f"Expected each view once, but got '{names}'.")
    return [VIEWS[name] for name in found]


def look(images: Tensor, names: str) -> Iterator[Tensor]:
    """uint8 images, then their views, uint8 too.

    >>> [int(x.sum()) for x in look(torch.full((1, 3, 2, 2), 7, dtype=torch.uint8), "flip+gray")]
    [84, 84, 84]
    """
    yield images
    for view in named_views(names) if names else ():
        yield (view(images.float() / 255) * 255).round().to(torch.uint8)


def look_normalised(images: Tensor, view: View, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """A view of images that are normalised, normalised too."""
    return normalise(view(pixels(images, mean, std)), mean, std)
