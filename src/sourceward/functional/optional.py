"""Operations that let None through: without a latent network there is no latent to draw, detach or join."""

from typing import overload

import torch
from torch import Tensor

from sourceward.functional import Gaussian


def draw(gaussian: Gaussian | None, generator: torch.Generator | None) -> Tensor | None:
    return None if gaussian is None else gaussian.sample(generator)


def detach(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


@overload
def join(a: Tensor, b: Tensor) -> Tensor: ...
@overload
def join(a: Tensor | None, b: Tensor | None) -> Tensor | None: ...
def join(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Rows of both, along the batch axis."""
    return None if a is None or b is None else torch.cat([a, b], dim=1)
