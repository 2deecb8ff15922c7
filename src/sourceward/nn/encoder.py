"""`ImageEncoder`: from pixels to rescaled features, as a function that a CUDA graph can record."""

import torch
from torch import Tensor

from sourceward.nn import Network
from sourceward.nn.backbones import ImagePreprocessing


class StaleEncoder(Exception):
    """The backbone is no longer what it was when the encoder was made."""


class ImageEncoder:
    """uint8 images (n, channels, height, width) that have the model's own size to features (n, dim).

    What is constant lies on the device already: nothing in a call comes from the host.

    Args:
        network: with its backbone.
        preprocessing: of the backbone.
    """

    def __init__(self, network: Network, preprocessing: ImagePreprocessing) -> None:
        device = network.scale.device
        self.network = network
        self.mean = torch.tensor(preprocessing.mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(preprocessing.std, device=device).view(-1, 1, 1)
        assert network.backbone is not None
        self.preprocessing, self._backbone = preprocessing, network.backbone
        self.modules = list(network.backbone.modules())
        """Of the backbone, found once: it takes a while."""
        tables = [t for m in self.modules for t in (m._modules, m._parameters, m._buffers) if t]
        self._held = [(table, name, value) for table in tables for name, value in table.items()]
        self._tensors = [value for _, _, value in self._held if isinstance(value, Tensor)]
        self._places = self._read_places()
        self._alive = [tensor.detach() for tensor in self._tensors]  # a graph may be launched once too often

    def __call__(self, images: Tensor) -> Tensor:
        return self.network.features((images.float() / 255 - self.mean) / self.std)

    def valid(self) -> bool:
        """Whether everything is still where it was: a graph reads its memory. What is written there in place
        is read, too; a tensor or a part that was replaced is not."""
        return (
            self._backbone is self.network.backbone
            and all(table.get(name) is value for table, name, value in self._held)
            and self._places == self._read_places()
        )

    def _read_places(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._tensors]
