"""ResNet "v1": the original network of He et al. (2015).

Today's libraries build "v1.5", where the 3x3 convolution of a stage's first block has the stride. In v1
it sits in the 1x1 convolution before it. The shapes are the same, so weights of one load silently into
the other and lose accuracy. `-v1` after the name of a bottleneck ResNet asks for the original.
"""

from typing import Any

from torch import nn

from sourceward.errors import InputError

SUFFIX = "-v1"


def split_name(name: str) -> tuple[str, bool]:
    """
    >>> split_name("resnet50-v1"), split_name("resnet50")
    (('resnet50', True), ('resnet50', False))
    """
    return name.removesuffix(SUFFIX), name.endswith(SUFFIX)


def stride_in_1x1(network: nn.Module, name: str) -> nn.Module:
    """Move the stride of layer2, layer3 and layer4 of a torchvision or timm ResNet from conv2 to conv1."""
    blocks: list[Any] = [getattr(network, layer)[0] for layer in _LAYERS if hasattr(network, layer)]
    fits = [
        hasattr(block, "conv3") and block.conv1.kernel_size == (1, 1) and block.conv2.stride == (2, 2)
        for block in blocks
    ]
    if len(fits) != len(_LAYERS) or not all(fits):
        raise InputError(
            f"Expected a bottleneck ResNet (resnet50, resnet101, resnet152) before '{SUFFIX}', but got "
            f"{name!r}: it has no 1x1 convolution to move the stride to. Leave the suffix out."
        )
    for block in blocks:
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return network


_LAYERS = ("layer2", "layer3", "layer4")
