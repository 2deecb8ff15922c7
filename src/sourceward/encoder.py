"""`ImageEncoder`: from pixels to rescaled features, as a function that a CUDA graph can record."""

import torch
from torch import Tensor

from sourceward.nn import Network
from sourceward.nn.backbones import ImagePreprocessing


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
        self._backbone = network.backbone
        self._tensors = [*network.backbone.parameters(), *network.backbone.buffers()]
        self._places = self._read_places()

    def __call__(self, images: Tensor) -> Tensor:
        return self.network.features((images.float() / 255 - self.mean) / self.std)

    def valid(self) -> bool:
        """Whether the backbone is still where it was: a graph reads its memory."""
        return self._backbone is self.network.backbone and self._places == self._read_places()

    def _read_places(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._tensors]
