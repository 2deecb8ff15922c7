"""ResNet "v1": the original network of He et al. (2015).

Today's libraries build "v1.5", where the 3x3 convolution of a stage's first block has the stride. In v1
it sits in the 1x1 convolution before it. The shapes are the same, so weights of one load silently into
the other and lose accuracy. `-v1` after the name of a bottleneck ResNet asks for the original, and weights
from a file are tried both ways: the batch norms remember what the right one feeds them.
"""

import re
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from sourceward._util.errors import InputError

SUFFIX = "-v1"
MARGIN = 0.85
"""The right stride misses what batch norms remember by this share of the wrong one's miss, or less: 0.67
for ImageNet's ResNet-50 v1, 0.22 for its weights with statistics that were taken in v1.5."""
MISS = 0.6
"""Log of a ratio of variances: beyond it, the weights have seen nothing like photos."""
_LAYERS = ("layer2", "layer3", "layer4")
_ASKED = [f"{layer}.0.bn{number}" for layer in _LAYERS[:2] for number in (2, 3)]


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
    _swap(network)
    return network


def warn_of_stride(network: nn.Module, spec: str) -> None:
    """Say so where weights from a file belong to the ResNet with its stride in the other convolution."""
    plain, v1 = split_name(spec)
    if not re.fullmatch(r"(timm|torchvision):resnet(50|101|152)(\..*)?", plain):
        return
    photos, training = _photos(), network.training
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
            f"convolution, and lose accuracy in {spec}: name {other}.",
            stacklevel=3,
        )


def _swap(network: nn.Module) -> None:
    for layer in _LAYERS:
        block = getattr(network, layer)[0]
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


@torch.no_grad()
def _miss(network: Any, photos: Tensor) -> float:
    """How far the variances in the blocks with a stride are from those that their batch norms remember."""
    misses: list[Tensor] = []

    def look(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen, known = inputs[0].var((0, 2, 3)), norm.running_var
        misses.append((seen.clamp_min(1e-6) / known.clamp_min(1e-6)).log().abs().mean())  # type: ignore

    handles = [network.get_submodule(name).register_forward_pre_hook(look) for name in _ASKED]
    try:
        stem = getattr(network, "act1", None) or network.relu  # timm and torchvision
        feature = network.maxpool(stem(network.bn1(network.conv1(photos))))
        network.layer3[0](network.layer2(network.layer1(feature)))
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(misses).mean().item()


def _photos() -> Tensor:
    """The left and the right of the two photos that come with scikit-learn, as ImageNet's are normalised."""
    from sklearn.datasets import load_sample_images

    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    crops = []
    for image in load_sample_images().images:
        photo = (torch.from_numpy(image.copy()).permute(2, 0, 1) / 255 - mean) / std
        photo = interpolate(photo[None], scale_factor=0.6, mode="bilinear", antialias=True)
        crops += [photo[:, :, 16:176, :160], photo[:, :, 16:176, -160:]]
    return torch.cat(crops)
