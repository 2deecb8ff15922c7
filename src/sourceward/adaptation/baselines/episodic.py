"""Episodic test-time training: train on one sample, predict it, restore the weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sourceward.adaptation.base import image_backbone
from sourceward.adaptation.baselines.base import Baseline, BatchPrediction
from sourceward.adaptation.baselines.batches import sample_generators
from sourceward.adaptation.baselines.trainable import TrainableCopy, backbone
from sourceward.nn import Network


@dataclass(frozen=True)
class Episodic(Baseline):
    """A method that minimises a loss of one image with SGD and forgets it afterwards.

    Args:
        num_copies: augmented copies of the image in an update.
        learning_rate: of SGD without momentum; 0 leaves the model unchanged.
        num_updates: updates on each image; 0 leaves the model unchanged.
        seed: of the augmentations.
    """

    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"

    batch_size: int = 1
    num_copies: int = 32
    learning_rate: float = 1e-3
    num_updates: int = 1
    seed: int = 0

    def check(self, network: Network) -> None:
        super().check(network)
        if self.reads == "inputs":
            image_backbone(network)

    def trainable(self, network: Network) -> TrainableCopy:
        """Return the copy that is trained: the backbone, with the stored statistics of batch norm."""
        return backbone(network, batch_statistics=False)

    def make_loss(
        self, model: TrainableCopy, image: Tensor, generator: torch.Generator
    ) -> Callable[[], Tensor]:
        """Return the loss of one image (1, 3, height, width), evaluated before each update."""
        raise NotImplementedError

    def predict_batches(self, network: Network, batches: Iterator[Tensor]) -> Iterator[BatchPrediction]:
        model = self.trainable(network)
        original = [parameter.detach().clone() for parameter in model.parameters]
        optimizer = torch.optim.SGD(model.parameters, lr=self.learning_rate)
        for batch in batches:
            predictions = []
            for image, generator in zip(batch.split(1), sample_generators(batch, self.seed)):
                loss = self.make_loss(model, image, generator)
                for _ in range(self.num_updates):
                    optimizer.zero_grad(set_to_none=True)
                    loss().backward()
                    optimizer.step()
                predictions.append(model.predict(image))
                with torch.no_grad():
                    torch._foreach_copy_(list[Tensor](model.parameters), original)
            yield BatchPrediction.concatenate(predictions)
