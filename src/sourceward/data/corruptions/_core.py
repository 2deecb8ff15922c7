"""The registry of corruptions, and random numbers for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sourceward._util.registry import Registry

Function = Callable[[Tensor, Any, torch.Generator | None], Tensor]

RECIPES = ("imagenet", "cifar")


@dataclass(frozen=True)
class Corruption:
    """`function(images in [0, 1], level, generator)`, and its five levels in each recipe."""

    function: Function
    levels: Mapping[str, tuple[Any, ...]]


CORRUPTIONS: Registry[Corruption] = Registry("corruption")


def corruption(imagenet: tuple[Any, ...], cifar: tuple[Any, ...]) -> Callable[[Function], Function]:
    """Register a function under its own name, with its levels from mild to severe."""

    def add(function: Function) -> Function:
        CORRUPTIONS.register(function.__name__)(Corruption(function, {"imagenet": imagenet, "cifar": cifar}))
        return function

    return add


def quantise(images: Tensor) -> Tensor:
    """[0, 1] to uint8 by truncation, as the authors' code does; 1e-3 of a level absorbs float32 rounding."""
    return (images.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(shape, generator=generator, device=like.device)


def uniform(
    shape: tuple[int, ...], low: float, high: float, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    return torch.rand(shape, generator=generator, device=like.device) * (high - low) + low


def gray(images: Tensor) -> Tensor:
    """Return the luma (batch, 1, height, width) with the weights of ITU-R BT.601.

    `image_ops.grayscale` has 0.2989 for red, as torchvision; the benchmark corruptions have 0.299.
    """
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue
