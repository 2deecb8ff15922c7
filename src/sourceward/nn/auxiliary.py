"""Networks beside a backbone that a fine-tuning method trains and an adapter uses, saved with its weights."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sourceward.functional import Gaussian, class_centers
from sourceward.nn.feature_statistics import early_maps, with_map_means
from sourceward.nn.heads import LatentNet

ROTATION = "rotation"
"""The head of test-time training: rotation by 0, 90, 180 or 270 degrees."""
SINGLE_SAMPLE = "single_sample"
"""The classifier generated for each sample (Xiao, Zhen, Shao & Snoek, ICLR 2022)."""
DOMAIN_EMBEDDING = "domain_embedding"
"""The domain-adaptive classifier (Dubey, Ramanathan, Pentland & Mahajan, CVPR 2021)."""

CENTER_RATE = 0.1
"""Rate at which stored class centres follow those of a batch; that of joint training."""
MAPS = (4, 8, 16, 32)
"""Strides of the maps that describe a sample's domain: the stages of a ResNet, as in the released code."""
SHARE, HIDDEN = 4, 1024
"""A domain embedding has a fourth of a feature's width; hidden width of the classifier that reads both: those
of the first author's code (abhimanyudubey/DomainBed)."""


class GeneratedClassifier(nn.Module):
    """Generates a classifier for each sample from the class centres of the sources and the sample itself.

    Weights of class c: a Gaussian that one network reads from h(theta_c, t), where theta_c is a Gaussian that
    another network reads from the class centre of the sources, and t describes the sample's domain: a network
    of the channel means of its maps. Logits are x . w_c / sqrt(dim).

    Args:
        backbone: whose maps are read; its features where it has none.
        sources, classes: sizes.
    """

    centers: Tensor

    def __init__(self, backbone: Any, sources: int, classes: int) -> None:
        super().__init__()
        dim, (self.maps, width) = backbone.dim, map_layers(backbone)
        self.domain = _two_layers(width or dim, dim)
        self.source, self.generate = LatentNet(dim), LatentNet(dim)
        self.join = _two_layers(2 * dim, dim)
        self.register_buffer("centers", torch.zeros(sources, classes, dim))

    def describe(self, backbone: nn.Module, inputs: Any) -> tuple[Tensor, Tensor]:
        """Return features (batch, dim) and what describes the domain of each sample, (batch, dim)."""
        if not self.maps:
            feature = backbone(inputs)
            return feature, self.domain(feature)
        feature, means = with_map_means(backbone, self.maps, inputs)
        return feature, self.domain(means)

    def prior(
        self, source_centers: Tensor, domain: Tensor, generator: torch.Generator | None = None
    ) -> Gaussian:
        """Return weights from centres (classes, dim) and samples (batch, dim): (batch, classes, dim).

        With a generator, theta is drawn; otherwise it is its mean.
        """
        source = self.source(source_centers)
        theta = source.mean if generator is None else source.sample(generator)
        shape = (len(domain), *theta.shape)
        pairs = torch.cat([theta.expand(shape), domain.unsqueeze(1).expand(shape)], -1)
        return self.generate(self.join(pairs))

    def posterior(self, target_centers: Tensor) -> Gaussian:
        """Return weights from the class centres of the target itself: (classes, dim)."""
        return self.generate(target_centers)

    def batch_centers(self, feature: Tensor, label: Tensor) -> Tensor:
        """Return the class centres of a batch (sources, batch, dim), stored ones where a class is missing;
        stored centres follow."""
        centers, count = class_centers(feature, label, self.centers.shape[1])
        has = (count > 0).unsqueeze(-1)
        with torch.no_grad():
            self.centers.lerp_(centers.detach().to(self.centers), CENTER_RATE * has.to(self.centers))
        return torch.where(has, centers, self.centers.clone())

    def forward(self, feature: Tensor, domain: Tensor) -> Tensor:
        """Return the logits (batch, classes) of each sample's own classifier."""
        return classify(feature, self.prior(self.centers.mean(0), domain).mean)


def _two_layers(width: int, dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, dim), nn.ReLU(), nn.Linear(dim, dim))


def map_layers(backbone: Any) -> tuple[list[str], int]:
    """Return the names of the modules that end the strides in `MAPS`, and their channels together."""
    size = getattr(backbone.preprocessing, "size", None)
    if size is None:
        return [], 0
    training, channels = backbone.training, len(backbone.preprocessing.mean)
    backbone.eval()
    names = [f"network.{name}" for name in early_maps(backbone.network, size, channels, MAPS)]
    blank = torch.zeros(1, channels, *size, device=backbone.device)
    with torch.no_grad():
        width = with_map_means(backbone, names, blank)[1].shape[1] if names else 0
    backbone.train(training)
    return names, width


def classify(feature: Tensor, weights: Tensor) -> Tensor:
    """Return logits x . w_c / sqrt(dim), for weights (classes, dim) or (batch, classes, dim)."""
    return (feature.unsqueeze(1) * weights).sum(-1) / math.sqrt(feature.shape[-1])


class DomainClassifier(nn.Module):
    """Embeds a domain by a second network, and classifies features together with their domain's embedding.

    Args:
        network: of the backbone, copied; it becomes the embedding network.
        dim: width of features.
        classes: number of classes.
    """

    def __init__(self, network: nn.Module, dim: int, classes: int) -> None:
        super().__init__()
        self.network, width = copy.deepcopy(network), max(1, dim // SHARE)
        self.project = nn.Sequential(nn.Linear(dim, width), nn.ReLU())
        self.feature = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        self.classifier = nn.Sequential(nn.Linear(dim + width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))

    def embed(self, inputs: Any) -> Tensor:
        """Return what each input says about its domain: (batch, embedding)."""
        return self.project(self.network(inputs).flatten(1).float()).float()

    def forward(self, feature: Tensor, domain: Tensor) -> Tensor:
        """Return logits for features (batch, dim) and the embedding of each row's domain."""
        feature = self.feature(feature)
        return self.classifier(torch.cat([feature, domain.expand(len(feature), -1)], -1))


def _rotation(backbone: Any, outputs: int) -> nn.Module:
    head = nn.Linear(backbone.dim, outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


AUXILIARY: dict[str, Callable[..., nn.Module]] = {
    ROTATION: _rotation,
    SINGLE_SAMPLE: GeneratedClassifier,
    DOMAIN_EMBEDDING: lambda backbone, classes: DomainClassifier(backbone.network, backbone.dim, classes),
}
"""Builders by name: of a backbone and sizes."""
