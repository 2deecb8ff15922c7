"""What a baseline may train: a copy of the network, with the parameters that learn."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sourceward.adaptation.base import Unsuitable
from sourceward.adaptation.baselines.base import BatchPrediction
from sourceward.adaptation.baselines.classifier import encoder, ensemble_logits
from sourceward.nn import Network

NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)


class TrainableCopy:
    """A model that a baseline trains at test time.

    Args:
        network: a copy, or the original where none of its parameters are trained.
        encode: maps inputs to rescaled features (batch, dim).
        parameters: those that are trained.
    """

    def __init__(
        self, network: Network, encode: Callable[[Any], Tensor], parameters: list[nn.Parameter]
    ) -> None:
        self.network, self.encode, self.parameters = network, encode, parameters

    def logits(self, feature: Tensor) -> Tensor:
        """Return the logits of all classifiers, see `ensemble_logits`."""
        return ensemble_logits(self.network, feature)

    @torch.no_grad()
    def predict(self, inputs: Any) -> BatchPrediction:
        """Return the prediction with the present parameters."""
        feature = self.encode(inputs)
        return BatchPrediction.from_logits(feature, self.logits(feature))


class Affine(nn.Module):
    """A scale and a shift of each feature, initially 1 and 0: the affine part of a norm layer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, feature: Tensor) -> Tensor:
        return feature * self.scale + self.shift


def affine(network: Network) -> TrainableCopy:
    """Train a scale and a shift of each feature, for methods that train norm layers."""
    layer = Affine(network.dim).to(network.scale)
    return TrainableCopy(network, layer, list(layer.parameters()))


def linear(network: Network) -> TrainableCopy:
    """Train a linear map of the features, initially the identity, for methods that train the backbone."""
    layer = nn.Linear(network.dim, network.dim).to(network.scale)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return TrainableCopy(network, layer, list(layer.parameters()))


def latent(network: Network) -> TrainableCopy:
    """Train the latent network, which infers z from samples and from class centres."""
    if network.latent is None:
        raise Unsuitable("This model has no latent z to adapt. Fit one with head='pooled' or 'prototype'.")
    clone = copy.deepcopy(network).requires_grad_(False)
    assert clone.latent is not None
    clone.latent.requires_grad_(True)
    return TrainableCopy(clone, lambda feature: feature, list(clone.latent.parameters()))


def norm_layers(network: Network) -> TrainableCopy:
    """Train scales and shifts of the backbone's norm layers; batch norm uses the batch's statistics."""
    clone = use_batch_statistics(copy.deepcopy(network).requires_grad_(False))
    modules = backbone_of(clone).named_modules()  # auxiliary networks belong to other methods
    norms = [m for name, m in modules if isinstance(m, NORMS) and "auxiliary." not in name]
    parameters = [p for m in norms for p in (m.weight, m.bias) if p is not None]
    if not parameters:
        raise Unsuitable("This backbone has no norm layer with a scale and a shift to adapt.")
    for parameter in parameters:
        parameter.requires_grad_(True)
    return TrainableCopy(clone, encoder(clone), parameters)


def backbone(network: Network, batch_statistics: bool = True) -> TrainableCopy:
    """Train the whole backbone; batch norm uses the batch's statistics, or the stored ones."""
    clone = copy.deepcopy(network).requires_grad_(False)
    if batch_statistics:
        use_batch_statistics(clone)
    parameters = list(backbone_of(clone).requires_grad_(True).parameters())
    return TrainableCopy(clone, encoder(clone), parameters)


TRAINABLE: dict[str, Callable[[Network], TrainableCopy]] = {
    "affine": affine,
    "linear": linear,
    "latent": latent,
    "norm_layers": norm_layers,
    "backbone": backbone,
}
"""By the names that a method's `trains` takes."""


def backbone_of(network: Network) -> nn.Module:
    """Return the backbone of a network that has one."""
    assert network.backbone is not None
    return network.backbone


def use_batch_statistics(network: Network) -> Network:
    """Drop the stored statistics of batch norm, so that it normalises each batch by its own."""
    for module in backbone_of(network).modules():
        if isinstance(module, _BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return network
