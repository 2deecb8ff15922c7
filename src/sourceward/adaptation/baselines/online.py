"""Methods that learn from an unlabelled stream: forward, loss, one update, next batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.adaptation.baselines.peer import Peer, Response, Student, at_least, response
from sourceward.nn import Network


@dataclass(frozen=True)
class Online(Peer):
    """Adam on a loss of each batch, from the first batch to the last.

    A batch is answered by the forward pass its update was computed from, as the released code of Tent does,
    or by another one after the update where `answers_after` is true.

    Args:
        rate: learning rate; 0 learns nothing.
        steps: updates on each batch; 0 learns nothing.
    """

    answers_after: ClassVar[bool] = False

    rate: float = 1e-3
    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "rate", "steps")

    def student(self, network: Network) -> Student:
        """What is learned."""
        raise NotImplementedError

    def objective(self, student: Student) -> Callable[[Any, Tensor, Tensor], Tensor]:
        """(inputs, feature, logits of the voters) to the loss of a batch; it may remember between batches."""
        raise NotImplementedError

    def stream(self, network: Network, batches: Iterator[Any]) -> Iterator[Response]:
        student = self.student(network)
        objective = self.objective(student)
        optimizer = torch.optim.Adam(student.parameters, lr=self.rate)
        for batch in batches:
            answer = None
            for _ in range(self.steps):
                feature = _encode(student, batch)
                logits = student.logits(feature)
                answer = response(feature, logits)
                loss = objective(batch, feature, logits)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            yield student.answer(batch) if answer is None or self.answers_after else answer


def _encode(student: Student, batch: Any) -> Tensor:
    try:
        return student.encode(batch)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            "Batch norm cannot take the statistics of one value. Use a larger `batch_size`, and a number of "
            "rows that leaves no single one over."
        ) from None
