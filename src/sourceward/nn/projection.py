"""`Projected`: principal components of features, so that heads and energies stay small."""

import torch
from torch import Tensor, nn

from sourceward.functional.rows import stable_matmul


class Projected(nn.Module):
    """A backbone (or the identity) followed by a fixed projection.

    Args:
        backbone: from inputs to (batch, wide); None when inputs are features already.
        projection: (wide, dim).
    """

    projection: Tensor

    def __init__(self, backbone: nn.Module | None, projection: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("projection", projection)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.project(inputs if self.backbone is None else self.backbone(inputs))

    def project(self, feature: Tensor) -> Tensor:
        """Project features: (batch, wide) -> (batch, dim)."""
        return stable_matmul(feature, self.projection)  # bfloat16 would lose precision


def principal_components(feature: Tensor, dim: int) -> Tensor:
    """The `dim` directions of greatest variance of (batch, wide) features, as columns: (wide, dim).

    >>> principal_components(torch.tensor([[1.0, 0.1], [3.0, 0.0], [5.0, 0.1]]), 1).abs().round().flatten()
    tensor([1., 0.])
    """
    centred = feature.double() - feature.double().mean(0)
    directions = torch.linalg.eigh(centred.T @ centred)[1].flip(1)[:, :dim]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    # The sign of an eigenvector is arbitrary; and only memory in one order gives the same bits when loaded.
    return (directions * largest.sign()).float().contiguous()
