"""What `bench speed` measures, and the backbones, networks and models with random weights for it."""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

from sourceward.estimator import EnergyAdapter
from sourceward.model import Model
from sourceward.nn import Network, Projected
from sourceward.nn.backbones import create_backbone
from sourceward.settings import AdaptSettings, TrainSettings

BACKBONES = {"resnet18": 512, "resnet50": 2048, "mobilenet_v2": 1280}
CLASSES = 7


@dataclass(frozen=True)
class SpeedPlan:
    """What is measured; the defaults are the full run on CUDA."""

    batches: tuple[int, ...] = (1, 32, 128)
    widths: tuple[int, ...] = (256, 512, 768, 2048)
    steps: tuple[int, ...] = (1, 5, 20, 50, 100)
    sources: tuple[int, ...] = (1, 3, 5)
    draws: tuple[int, ...] = (1, 10)
    backbones: tuple[str, ...] = ("resnet18", "resnet50")
    image_size: int = 224
    num_steps: int = 20
    repeats: int = 30
    seconds: float = 0.7
    """Time limit of each measurement."""
    train_iterations: int = 500
    train_batch: int = 128
    fit_iterations: int = 100
    seed: int = 0
    components: int | None = TrainSettings.components
    """Principal components of a backbone's features, as many as `fit` keeps."""
    default_backbones: tuple[str, ...] = ("resnet50",)
    doubt: tuple[tuple[float, float], ...] = ((0.15, 0.08), (0.25, 0.15), (0.35, 0.2))
    """Shares of samples that need copies, and that need all copies, for the cost of the cascade."""
    copy_scales: tuple[float, ...] = (1.0, 0.7)
    """Shares of the side that copies have."""
    pictures: int = 256
    """JPEG files to predict."""
    growth: int = 9
    """Sizes at most of which growth is measured, on each axis."""

    @classmethod
    def on(cls, device: torch.device) -> "SpeedPlan":
        """Return the full run for a device; a CPU leaves out batches of 128, which take long."""
        small = ("mobilenet_v2", "resnet50")
        return cls() if device.type == "cuda" else cls(batches=(1, 32), default_backbones=small)

    @classmethod
    def quick(cls) -> "SpeedPlan":
        """Return a run of seconds that covers all code; its numbers mean nothing."""
        small = cls((1, 4), (32,), (1, 4), (1, 2), (1, 2), ("resnet18",), 64, 4, 3, 0.01, 1, 2, 5)
        small = replace(small, default_backbones=("resnet18",), doubt=((0.5, 0.25),), copy_scales=(1.0, 0.5))
        return replace(small, pictures=6, growth=2)


class Bare(nn.Module):
    """A torchvision network with random weights and no last layer; bfloat16 on CUDA, channels last."""

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__()
        model = getattr(torchvision.models, name)(weights=None)
        setattr(model, "fc" if hasattr(model, "fc") else "classifier", nn.Identity())
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model = model.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)
        self.model = model.to(self.dtype)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images.to(self.dtype, memory_format=torch.channels_last))


def make_images(batch: int, size: int, device: torch.device) -> Tensor:
    """Return uint8 pixels."""
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
    """Return directions that keep `components` of `wide` features; None where all are kept."""
    if components is None:
        return None
    directions = torch.randn(wide, components, generator=torch.Generator().manual_seed(4))
    return torch.linalg.qr(directions)[0].contiguous().to(device)


def make_model(
    name: str, bare: Bare, components: int | None, size: int, num_steps: int, device: torch.device
) -> Model:
    """Return a model as `fit` builds one: backbone, principal components, heads and energies of 3 sources."""
    wide = BACKBONES[name]
    # On a CPU passes of a module of one's own do not overlap, those of a known backbone do.
    known = bare if device.type == "cuda" else f"torchvision:{name}"
    backbone: nn.Module = create_backbone(known, weights=None, image_size=size, dim=wide)
    projection = make_projection(wide, components, device)
    if projection is not None:
        backbone = Projected(backbone, projection)
    network = make_network(components or wide, 3, device, backbone)
    adapter = EnergyAdapter(num_steps)
    adapter.start("abc", np.array([f"class {number}" for number in range(CLASSES)]), wide)
    return Model(adapter.set_network(network, AdaptSettings(num_steps)))
