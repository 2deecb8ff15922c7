"""Operations on latents that may be None: a network without latent has nothing to draw, detach or join."""

from typing import overload

import torch
from torch import Tensor

from sourceward.functional.gaussian import Gaussian


def draw(gaussian: Gaussian | None, generator: torch.Generator | None) -> Tensor | None:
    """One sample of the Gaussian, or None."""
    return None if gaussian is None else gaussian.sample(generator)


def detach(tensor: Tensor | None) -> Tensor | None:
    """The tensor as a constant, or None."""
    return None if tensor is None else tensor.detach()


@overload
def join(a: Tensor, b: Tensor) -> Tensor: ...
@overload
def join(a: Tensor | None, b: Tensor | None) -> Tensor | None: ...
def join(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Both, concatenated along the batch axis, or None."""
    return None if a is None or b is None else torch.cat([a, b], dim=1)
