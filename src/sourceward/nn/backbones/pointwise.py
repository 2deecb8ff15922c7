"""1x1 convolutions by one kernel, whatever the number of CPU threads.

With one thread torch computes a 1x1 convolution of few samples by BLAS, with more threads by oneDNN. Their
bits differ, and oneDNN is faster with one thread, too.
"""

import torch
from torch import Tensor, nn


class Pointwise(nn.Conv2d):
    """`nn.Conv2d` of kernel 1 without padding, by oneDNN on a CPU; with gradients as always."""

    def forward(self, maps: Tensor) -> Tensor:
        if torch.is_grad_enabled() or maps.device.type != "cpu" or maps.dtype != torch.float32:
            return super().forward(maps)
        if torch.compiler.is_compiling() or not torch.backends.mkldnn.is_available():
            return super().forward(maps)
        return torch.mkldnn_convolution(
            maps, self.weight, self.bias, (0, 0), self.stride, self.dilation, self.groups
        )


def use_pointwise(network: nn.Module) -> None:
    """Make the 1x1 convolutions of a network `Pointwise`; their tensors and names stay."""
    for module in network.modules():
        if type(module) is nn.Conv2d and module.kernel_size == (1, 1) and module.padding == (0, 0):
            module.__class__ = Pointwise
