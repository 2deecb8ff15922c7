"""The contract of a fine-tuning method for images."""

from typing import Any

from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward._util.errors import InputError
from sourceward.training.finetune import Method, Rows
from sourceward.training.needs import Needs


class ImageMethod(Method):
    """A method whose loss is defined for images; it refuses texts."""

    needs = Needs(images=True)

    def loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        if not isinstance(batch.inputs, Tensor) or batch.inputs.ndim != 4:
            name = self.settings.method
            raise InputError(f"Fine-tuning by {name!r} needs images, but the data holds texts. Use 'erm'.")
        return self.image_loss(backbone, head, batch, generator)

    def image_loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        """Return the number to minimise for normalised images; see `Method.loss`."""
        raise NotImplementedError

    def cross_entropy(self, logits: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy with the label smoothing of the settings."""
        smoothing = self.settings.label_smoothing
        return cross_entropy(logits, label, reduction=reduction, label_smoothing=smoothing)
