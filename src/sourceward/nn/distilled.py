"""`DistilledStep`: one distilled per source, all held in one set of batched weights."""

import math

import torch
from torch import Tensor, nn

from sourceward.functional.distilled import DistilledWeights

WIDTH = 128
"""Of the hidden layer: the chain hardly bends, and less would do."""


class DistilledStep(nn.Module):
    """The map of `functional.distilled` for every source; it starts as a straight step down the gradient.

    Args:
        sources, hidden, dim: sizes of the energy.
        reach: length of the straight step: that of a chain's steps together.
        width: of the hidden layer.
    """

    def __init__(self, sources: int, hidden: int, dim: int, reach: float = 1.0, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.zeros(sources, hidden, width))
        self.bias = nn.Parameter(torch.zeros(sources, 1, width))
        self.outer = nn.Parameter(torch.zeros(sources, width, dim))
        self.scale = nn.Parameter(torch.zeros(sources, 1, width))
        self.length = nn.Parameter(torch.full((sources, 1, 1), math.log(reach)))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """The inner layer at random; nothing of it reaches the outside yet."""
        normal = torch.randn(self.inner.shape, generator=generator)
        self.inner.copy_(normal / math.sqrt(self.inner.shape[1]))

    @classmethod
    def like(cls, state: dict[str, Tensor], prefix: str) -> "DistilledStep":
        """Of the sizes that a state dict tells."""
        sources, hidden, width = state[f"{prefix}inner"].shape
        return cls(sources, hidden, state[f"{prefix}outer"].shape[-1], width=width)

    def weights(self) -> DistilledWeights:
        return DistilledWeights(self.inner, self.bias, self.outer, self.scale, self.length)
