"""`ReplayBuffer`: past chain ends, kept by source and class on the device they live on."""

from typing import Any

import torch
from torch import Tensor, nn


class ReplayBuffer(nn.Module):
    """A ring of adapted features for each source and class.

    A module without parameters, so that its content is saved and resumed with everything else.

    Args:
        sources, classes, dim: sizes.
        per_class: rows kept for each source and class (the released code keeps 500).
    """

    rows: Tensor
    pushed: Tensor

    def __init__(self, sources: int, classes: int, dim: int, per_class: int = 500) -> None:
        super().__init__()
        self.per_class = per_class
        self.register_buffer("rows", torch.zeros(sources, classes, per_class + 1, dim))
        self.register_buffer("pushed", torch.zeros(sources, classes, dtype=torch.int64))

    @torch.no_grad()
    def push(self, feature: Tensor, label: Tensor) -> None:
        """Add rows, oldest out first: feature (sources, batch, dim), label (sources, batch)."""
        member = torch.nn.functional.one_hot(label, self.pushed.shape[1])
        rank = (member.cumsum(1) * member).sum(-1) - 1  # how many of this class came before in the batch
        count = member.sum(1)
        slot = (self.pushed.gather(1, label) + rank) % self.per_class
        source = torch.arange(len(label), device=label.device).unsqueeze(1).expand_as(label)
        # If more rows come than a ring holds, only the newest count; the rest go to a spare slot that is
        # never read, because the order of two writes to one address is not defined.
        newest = rank >= count.gather(1, label) - self.per_class
        slot = torch.where(newest, slot, self.per_class)
        self.rows[source, label, slot] = feature.to(self.rows.dtype)
        self.pushed += count

    @torch.no_grad()
    def replace(
        self, feature: Tensor, label: Tensor, share: float, generator: torch.Generator | None
    ) -> Tensor:
        """Replace about a `share` of the rows by stored ones of the same source and class, if any."""
        options: dict[str, Any] = {"generator": generator, "device": label.device}
        stored = self.pushed.gather(1, label).clamp_max(self.per_class)
        slot = (torch.rand(label.shape, **options) * stored).long()
        swap = (torch.rand(label.shape, **options) < share) & (stored > 0)
        source = torch.arange(len(label), device=label.device).unsqueeze(1).expand_as(label)
        old = self.rows[source, label, slot].to(feature.dtype)
        return torch.where(swap.unsqueeze(-1), old, feature)
