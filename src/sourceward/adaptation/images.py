"""The image backbone inside a network, for adapters that transform images."""

from sourceward.adaptation.base import Unsuitable
from sourceward.nn import Network
from sourceward.nn.backbones import Backbone, ImagePreprocessing


def image_backbone(network: Network) -> Backbone:
    """Return the image backbone itself, without the projection that may follow it."""
    for module in network.modules():
        if isinstance(module, Backbone) and module.kind == "image":
            return module
    raise Unsuitable("This adapter transforms images, but this model has no image backbone.")


def image_preprocessing(network: Network) -> ImagePreprocessing:
    """Return how the backbone's images are normalised."""
    preprocessing = image_backbone(network).preprocessing
    assert isinstance(preprocessing, ImagePreprocessing)
    return preprocessing
