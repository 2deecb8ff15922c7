"""Quarter turns: the task of test-time training."""

import torch
from torch import Tensor


def rotate(images: Tensor, turns: Tensor) -> Tensor:
    """Each square image (batch, channels, side, side) by its own number of quarter turns, counter-clockwise.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> rotate(image, torch.tensor([1])).tolist()
    [[[[2, 4], [1, 3]]]]
    """
    turned = torch.stack([images.rot90(k, (2, 3)) for k in range(4)])
    return turned[turns, torch.arange(len(images), device=images.device)]
