"""Two small backbones without a download, for tests and demos."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sourceward.nn.backbones.backbone import BuildOptions, Parts
from sourceward.nn.backbones.preprocessing import ImagePreprocessing, TextPreprocessing
from sourceward.nn.backbones.tokenizers import HashTokenizer

BUCKETS = 4096


class TinyConv(nn.Sequential):
    """Three strided convolutions, 6,088 parameters. 128 features on a 2x2 grid."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for before, after in ((3, 8), (8, 16), (16, 32)):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())


class TinyText(nn.Module):
    """Mean of hashed word embeddings and one hidden layer: 64 features."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BUCKETS, 64)
        self.hidden = nn.Linear(64, 64)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        mask = batch["attention_mask"].unsqueeze(-1).float()
        words = (self.embedding(batch["input_ids"]) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.tanh(self.hidden(words))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"conv": TinyConv, "text": TinyText}


def build(name: str, options: BuildOptions) -> Parts:
    network = NETWORKS[name]()
    if name == "text":
        return Parts(
            network, TextPreprocessing("hash", options.max_length or 64), tokenizer=HashTokenizer(BUCKETS)
        )
    half = (0.5, 0.5, 0.5)
    return Parts(network, ImagePreprocessing(options.image_size or (32, 32), half, half, crop_fraction=1.0))


def rebuild(name: str, architecture: dict[str, Any], pooling: str | None) -> nn.Module:
    return NETWORKS[name]()


def names() -> list[str]:
    return list(NETWORKS)


def is_name(name: str) -> bool:
    return name in NETWORKS
