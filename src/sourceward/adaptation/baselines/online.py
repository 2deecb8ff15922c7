"""Online test-time training: one update for each unlabelled batch, from the first to the last."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.adaptation.baselines.base import Baseline, BatchPrediction
from sourceward.adaptation.baselines.trainable import TRAINABLE, TrainableCopy
from sourceward.nn import Network

Loss = Callable[[Any, Tensor, Tensor], Tensor]
"""Maps a batch's inputs, features and classifier logits to its loss. It may keep state between batches."""


@dataclass(frozen=True)
class Online(Baseline):
    """A method that minimises a loss of each batch with Adam and keeps the weights for the next batch.

    The prediction is that of the forward pass which the update was computed from, as in Tent's released code,
    or of a second pass after the update where `predicts_after_update` is true.

    Args:
        learning_rate: of Adam; 0 leaves the model unchanged.
        num_updates: updates on each batch; 0 leaves the model unchanged.
    """

    trains: ClassVar[str]
    """A name in `TRAINABLE`."""
    predicts_after_update: ClassVar[bool] = False

    learning_rate: float = 1e-3
    num_updates: int = 1

    def trainable(self, network: Network) -> TrainableCopy:
        """Return the copy that is trained."""
        return TRAINABLE[self.trains](network)

    def make_loss(self, model: TrainableCopy) -> Loss:
        """Return the loss of a batch, with fresh state."""
        raise NotImplementedError

    def predict_batches(self, network: Network, batches: Iterator[Any]) -> Iterator[BatchPrediction]:
        model = self.trainable(network)
        loss = self.make_loss(model)
        optimizer = torch.optim.Adam(model.parameters, lr=self.learning_rate)
        for batch in batches:
            prediction = None
            for _ in range(self.num_updates):
                feature = _encode(model, batch)
                logits = model.logits(feature)
                prediction = BatchPrediction.from_logits(feature, logits)
                value = loss(batch, feature, logits)
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                optimizer.step()
            yield model.predict(batch) if prediction is None or self.predicts_after_update else prediction


def _encode(model: TrainableCopy, batch: Any) -> Tensor:
    try:
        return model.encode(batch)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            "Batch norm cannot take the statistics of one value per channel. Use a larger `batch_size`, and "
            "a number of samples that leaves no last batch of one."
        ) from None
