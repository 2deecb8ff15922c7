"""ResNet "v1": the original network of He et al. (2015).

Current libraries build "v1.5", where the 3x3 convolution of a stage's first block has the stride. In v1 the
1x1 convolution before it has the stride. The shapes are the same, so weights of one load into the other
without an error and lose accuracy. The suffix `-v1` after the name of a bottleneck ResNet builds the
original. For weights from a file both strides are compared by the statistics that batch norms have stored.
"""

import re
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from sourceward._util.errors import InputError
from sourceward.nn.backbones.preprocessing import normalize

SUFFIX = "-v1"
MARGIN = 0.85
"""Largest ratio of the errors of the right and the wrong stride in batch norm variances. Measured: 0.67 for
ImageNet's ResNet-50 v1, 0.22 for its weights with statistics collected in v1.5."""
MISS = 0.6
"""Largest mean |log ratio| of variances: above it, the weights were not trained on photos."""
_LAYERS = ("layer2", "layer3", "layer4")
_NORMS = [f"{layer}.0.bn{number}" for layer in _LAYERS[:2] for number in (2, 3)]


def split_name(name: str) -> tuple[str, bool]:
    """Return the name without the suffix `-v1`, and whether it had it.

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
    _swap(network)
    return network


def warn_of_stride(network: nn.Module, spec: str) -> None:
    """Warn if weights from a file belong to the ResNet with its stride in the other convolution."""
    plain, v1 = split_name(spec)
    if not re.fullmatch(r"(timm|torchvision):resnet(50|101|152)(\..*)?", plain):
        return
    photos, training = sample_photos(), network.training
    network.eval()
    here = _miss(network, photos)
    _swap(network)
    there = _miss(network, photos)
    _swap(network)
    network.train(training)
    if there < min(MISS, MARGIN * here):
        other = plain if v1 else f"{plain.partition('.')[0]}{SUFFIX}"
        warnings.warn(
            f"These weights look like those of a ResNet with its stride in the {'3x3' if v1 else '1x1'} "
            f"convolution, and lose accuracy in {spec}. Use {other}.",
            stacklevel=3,
        )


def _swap(network: nn.Module) -> None:
    for layer in _LAYERS:
        block = getattr(network, layer)[0]
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


@torch.no_grad()
def _miss(network: Any, photos: Tensor) -> float:
    """Return the mean |log ratio| of batch norm input variances to the stored ones, in strided blocks."""
    misses: list[Tensor] = []

    def compare(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        measured, stored = inputs[0].var((0, 2, 3)), norm.running_var
        misses.append((measured.clamp_min(1e-6) / stored.clamp_min(1e-6)).log().abs().mean())  # type: ignore

    handles = [network.get_submodule(name).register_forward_pre_hook(compare) for name in _NORMS]
    try:
        stem = getattr(network, "act1", None) or network.relu  # timm and torchvision
        feature = network.maxpool(stem(network.bn1(network.conv1(photos))))
        network.layer3[0](network.layer2(network.layer1(feature)))
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(misses).mean().item()


def sample_photos() -> Tensor:
    """Return left and right crops of the two photos of scikit-learn, normalized as for ImageNet."""
    from sklearn.datasets import load_sample_images

    crops = []
    for image in load_sample_images().images:
        photo = normalize(torch.from_numpy(image.copy()).permute(2, 0, 1)[None])
        photo = interpolate(photo, scale_factor=0.6, mode="bilinear", antialias=True)
        crops += [photo[:, :, 16:176, :160], photo[:, :, 16:176, -160:]]
    return torch.cat(crops)
