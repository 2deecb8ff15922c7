"""What `bench speed` measures: backbones, networks and whole models with random weights."""

import torch
import torchvision
from torch import Tensor, nn

from sourceward.model import Model
from sourceward.nn import Network
from sourceward.nn.backbones import create_backbone
from sourceward.nn.projection import Projected
from sourceward.settings import AdaptSettings

BACKBONES = {"resnet18": 512, "resnet50": 2048}
CLASSES = 7


class Bare(nn.Module):
    """A torchvision network with random weights and no last layer; bfloat16 on CUDA, channels last."""

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__()
        model = getattr(torchvision.models, name)(weights=None)
        model.fc = nn.Identity()
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model = model.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)
        self.model = model.to(self.dtype)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images.to(self.dtype, memory_format=torch.channels_last))


def make_images(batch: int, size: int, device: torch.device) -> Tensor:
    """uint8 pixels."""
    shape, generator = (batch, 3, size, size), torch.Generator().manual_seed(3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(device)


def make_features(batch: int, dim: int, device: torch.device) -> Tensor:
    return torch.randn(batch, dim, generator=torch.Generator().manual_seed(1)).to(device)


def make_network(dim: int, sources: int, device: torch.device, backbone: nn.Module | None = None) -> Network:
    network = Network(sources, CLASSES, dim, "pooled", backbone)
    network.reset_parameters(torch.Generator().manual_seed(0))
    network.centers.copy_(torch.randn(network.centers.shape, generator=torch.Generator().manual_seed(2)))
    return network.requires_grad_(False).eval().to(device)


def make_projection(wide: int, components: int | None, device: torch.device) -> Tensor | None:
    """Directions that keep `components` of `wide` features; None where all are kept."""
    if components is None:
        return None
    directions = torch.randn(wide, components, generator=torch.Generator().manual_seed(4))
    return torch.linalg.qr(directions)[0].contiguous().to(device)


def make_model(
    name: str, bare: Bare, components: int | None, size: int, num_steps: int, device: torch.device
) -> Model:
    """As `fit` builds one: a backbone, its principal components, heads and energies of three sources."""
    wide = BACKBONES[name]
    backbone: nn.Module = create_backbone(bare, image_size=size, dim=wide)
    projection = make_projection(wide, components, device)
    if projection is not None:
        backbone = Projected(backbone, projection)
    network = make_network(components or wide, 3, device, backbone)
    names = tuple(f"class {number}" for number in range(CLASSES))
    return Model(network, names, ("a", "b", "c"), AdaptSettings(num_steps))
