"""`ImageEncoder`: from pixels to rescaled features, as a function that a CUDA graph can capture."""

import torch
from torch import Tensor, nn

from sourceward.nn import Network
from sourceward.nn.backbones import ImagePreprocessing


class StaleEncoder(Exception):
    """A tensor of the backbone was replaced, or has another address, since the encoder was created."""


class ImageEncoder:
    """Encode uint8 images (n, channels, height, width) of the backbone's input size as features (n, dim).

    All constants are on the device already, so a call transfers nothing from the host.

    Args:
        network: with a backbone.
        preprocessing: of the backbone.
        encode: from images to the features of several copies before they are rescaled, copy by copy.
        copies: how many.
    """

    def __init__(
        self,
        network: Network,
        preprocessing: ImagePreprocessing,
        encode: nn.Module | None = None,
        copies: int = 1,
    ) -> None:
        device = network.scale.device
        self.network, self.encode, self.copies = network, encode, copies
        self.mean = torch.tensor(preprocessing.mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(preprocessing.std, device=device).view(-1, 1, 1)
        assert network.backbone is not None
        self.preprocessing, self._backbone = preprocessing, network.backbone
        self.modules = list(network.backbone.modules())
        """All modules of the backbone, listed once because it is slow."""
        tables = [t for m in self.modules for t in (m._modules, m._parameters, m._buffers) if t]
        self._entries = [(table, name, value) for table in tables for name, value in table.items()]
        self._statistics = network.amplitudes, network.feature_statistics
        self._tensors = [value for _, _, value in self._entries if isinstance(value, Tensor)]
        self._addresses = self._read_addresses()
        self._alive = [tensor.detach() for tensor in self._tensors]  # a captured graph may still read them

    def __call__(self, images: Tensor) -> Tensor:
        """Features (n, dim), or (copies x n, dim), of uint8 images."""
        if self.encode is not None:
            return self.network.rescale(self.encode(images))
        return self.network.features((images.float() / 255 - self.mean) / self.std)

    def valid(self) -> bool:
        """Whether every tensor is at its old address. A captured graph reads these addresses: it sees changes
        in place, but not a tensor or module that was replaced."""
        return (
            self._backbone is self.network.backbone
            and self._statistics[0] is self.network.amplitudes
            and self._statistics[1] is self.network.feature_statistics
            and all(table.get(name) is value for table, name, value in self._entries)
            and self._addresses == self._read_addresses()
        )

    def _read_addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._tensors]
