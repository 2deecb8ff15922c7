"""Training batches: as many rows of every source, drawn with replacement."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from sourceward.functional.losses import Batch

Inputs = Tensor | dict[str, Tensor]
"""What a backbone takes: images, features, or tokens by name."""


class Feed(Protocol):
    """Draws a batch: every source's inputs and labels, and shifted samples when there are any."""

    def __call__(self, generator: torch.Generator) -> Batch: ...


class ResidentFeed:
    """Draws batches from tensors that lie on the device.

    Args:
        inputs: one tensor per source, (rows, ...).
        labels: one tensor per source, (rows,).
        batch_size: rows of each source.
        shifted: (inputs, labels) of no source: more negatives.
        prepare: makes drawn rows (sources x batch, ...) what the backbone takes, e.g. augmented images.
        change: makes shifted copies of the drawn rows, before `prepare`: more negatives.
    """

    def __init__(
        self,
        inputs: list[Tensor],
        labels: list[Tensor],
        batch_size: int,
        shifted: tuple[Tensor, Tensor] | None = None,
        prepare: Callable[[Tensor, torch.Generator], Inputs] | None = None,
        change: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    ) -> None:
        self.inputs, self.labels, self.batch_size = inputs, labels, batch_size
        self.shifted, self.prepare, self.change = shifted, prepare, change

    def __call__(self, generator: torch.Generator) -> Batch:
        rows = [self._rows(len(x), x.device, generator) for x in self.inputs]
        inputs: Any = torch.stack([x[i] for x, i in zip(self.inputs, rows)])
        labels = torch.stack([y[i] for y, i in zip(self.labels, rows)])
        if self.prepare is not None:
            return prepared(inputs.flatten(0, 1), labels, self.prepare, self.change, generator)
        if self.shifted is None:
            return Batch(inputs, labels)
        i = self._rows(len(self.shifted[0]), inputs.device, generator)
        return Batch(inputs, labels, self.shifted[0][i], self.shifted[1][i])

    def _rows(self, length: int, device: torch.device, generator: torch.Generator) -> Tensor:
        return torch.randint(length, (self.batch_size,), generator=generator, device=device)


def prepared(
    rows: Tensor,
    labels: Tensor,
    prepare: Callable[[Tensor, torch.Generator], Inputs],
    change: Callable[[Tensor, torch.Generator], Tensor] | None,
    generator: torch.Generator,
) -> Batch:
    """A batch of rows (sources x batch, ...) with labels (sources, batch), as the backbone takes it; with
    `change`, changed copies of all rows are its shifted samples."""
    sources, batch = labels.shape
    inputs: Any = unflatten(prepare(rows, generator), (sources, batch))
    if change is None:
        return Batch(inputs, labels)
    copies: Any = prepare(change(rows, generator), generator)
    return Batch(inputs, labels, copies, labels.flatten())


def unflatten(inputs: Inputs, shape: tuple[int, int]) -> Inputs:
    """(sources x batch, ...) to (sources, batch, ...)."""
    if isinstance(inputs, dict):
        return {name: value.unflatten(0, shape) for name, value in inputs.items()}
    return inputs.unflatten(0, shape)
