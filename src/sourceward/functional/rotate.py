"""Rotations by multiples of 90 degrees: the auxiliary task of test-time training."""

import torch
from torch import Tensor


def rotate(images: Tensor, rotations: Tensor) -> Tensor:
    """Rotate each square image (batch, channels, side, side) counter-clockwise, `rotations` times 90 degrees.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> rotate(image, torch.tensor([1])).tolist()
    [[[[2, 4], [1, 3]]]]
    """
    rotated = torch.stack([images.rot90(k, (2, 3)) for k in range(4)])
    return rotated[rotations, torch.arange(len(images), device=images.device)]
