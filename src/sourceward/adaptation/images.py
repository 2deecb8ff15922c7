"""The backbone inside a network, for adapters that transform images."""

from sourceward.adaptation.base import Unsuitable
from sourceward.nn import Network, Projected
from sourceward.nn.backbones import Backbone, ImagePreprocessing


def inner_backbone(network: Network) -> Backbone | None:
    """Return the backbone without the projection that may follow it; None where inputs are features."""
    backbone = network.backbone
    inner = backbone.backbone if isinstance(backbone, Projected) else backbone
    return inner if isinstance(inner, Backbone) else None


def image_backbone(network: Network) -> Backbone:
    """Return the image backbone itself, without the projection that may follow it."""
    backbone = inner_backbone(network)
    if backbone is not None and backbone.kind == "image":
        return backbone
    raise Unsuitable("This adapter transforms images, but this model has no image backbone.")


def image_preprocessing(network: Network) -> ImagePreprocessing:
    """Return how the backbone's images are normalised."""
    preprocessing = image_backbone(network).preprocessing
    assert isinstance(preprocessing, ImagePreprocessing)
    return preprocessing
