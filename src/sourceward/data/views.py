"""Views: the same picture looked at another way. Functions of pixels in [0, 1], (batch, 3, height, width)."""

from collections.abc import Callable

import torch
from torch import Tensor

from sourceward.data.augment import gray, pencil
from sourceward.errors import InputError, unknown_name

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda images: images.flip(-1),
    "gray": lambda images: gray(images).expand_as(images),
    "pencil": lambda images: pencil(images, torch.full_like(images[:, 0, 0, 0], 2.0)),
}


def named_views(names: str) -> list[Callable[[Tensor], Tensor]]:
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
