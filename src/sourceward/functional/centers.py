"""Class centres d: the mean feature of each class in each source."""

import torch
from torch import Tensor


def class_centers(feature: Tensor, label: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mean feature and number of samples of each class: (sources, classes, dim) and (sources, classes).

    A class without samples has count 0 and a centre of zeros.

    Args:
        feature: (sources, batch, dim).
        label: (sources, batch) of class numbers.
        num_classes: number of classes.

    Example:
        >>> centers, count = class_centers(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[0, 0]]), 2)
        >>> centers.flatten().tolist(), count.flatten().tolist()
        ([2.0, 0.0], [2.0, 0.0])
    """
    member = torch.nn.functional.one_hot(label, num_classes).to(feature.dtype)
    count = member.sum(1)
    return member.mT @ feature / count.clamp_min(1).unsqueeze(-1), count
