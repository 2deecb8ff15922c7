"""`torchvision:NAME` or `torchvision:NAME.WEIGHTS` (`resnet50.imagenet1k_v1`), without the classifier."""

from typing import Any

from torch import nn

from sourceward._util.errors import InputError, unknown_name
from sourceward.nn.backbones.backbone import BuildOptions, Parts
from sourceward.nn.backbones.preprocessing import ImagePreprocessing
from sourceward.nn.backbones.resnet_v1 import split_name, stride_in_1x1
from sourceward.nn.backbones.weights import OTHERWISE, no_download, url_cache

CLASSIFIER_LAYERS = ("fc", "classifier", "heads", "head")


def build(name: str, options: BuildOptions) -> Parts:
    import torchvision

    plain, _v1 = split_name(name)
    base = plain.partition(".")[0]
    weights = _weights(plain, options.pretrained)
    preprocessing = _preprocessing(weights, options.image_size)
    architecture: dict[str, Any] = {}
    if base.startswith("vit_"):
        architecture["image_size"] = preprocessing.size[0]
    if not options.pretrained:
        return Parts(rebuild(name, architecture, None), preprocessing, architecture)
    try:
        with url_cache(weights.url, local_files_only=options.local_files_only):
            network = torchvision.models.get_model(base, weights=weights, **architecture)
    except OSError as error:
        remedy = f"Connect to the internet once, {OTHERWISE}"
        raise no_download(f"the weights of torchvision:{name}", remedy, error) from error
    except ValueError as error:  # a vision transformer asked for another size than its weights have
        raise InputError(
            f"torchvision:{name} has one `image_size` only ({error}). Use timm's model."
        ) from error
    if getattr(network, "transform_input", False):  # inception weights expect inputs in another range
        architecture["transform_input"] = True
    return Parts(without_head(network), preprocessing, architecture)


def rebuild(name: str, architecture: dict[str, Any], pooling: str | None) -> nn.Module:
    import torchvision

    plain, v1 = split_name(name)
    network = torchvision.models.get_model(plain.partition(".")[0], weights=None, **architecture)
    return without_head(stride_in_1x1(network, name) if v1 else network)


def names() -> list[str]:
    import torchvision

    return list(torchvision.models.list_models(module=torchvision.models))


def is_name(name: str) -> bool:
    return split_name(name)[0].partition(".")[0] in names()


def without_head(network: nn.Module) -> nn.Module:
    """Remove the last linear layer and dropout before it; norms and hidden layers stay."""
    for branch in ("AuxLogits", "aux1", "aux2"):  # extra classifiers of the inception family
        if hasattr(network, branch):
            setattr(network, branch, None)
            network.aux_logits = False  # type: ignore[assignment]
    name = next(name for name in CLASSIFIER_LAYERS if hasattr(network, name))
    head = getattr(network, name)
    if type(network).__name__ == "SqueezeNet":  # its classifier is a convolution
        network.classifier = nn.AdaptiveAvgPool2d(1)
    elif isinstance(head, nn.Linear):
        setattr(network, name, nn.Identity())
    else:
        head = head[:-1]
        while len(head) and isinstance(head[-1], nn.Dropout):
            head = head[:-1]
        setattr(network, name, head)
    return network


def _weights(name: str, pretrained: bool) -> Any:
    """Return the entry whose weights or, for weights from a file, whose preprocessing is used.

    Files are assumed to follow the first recipe (`IMAGENET1K_V1`), as published ones do.
    """
    import torchvision

    base, _, tag = name.partition(".")
    entries = torchvision.models.get_model_weights(base)
    if tag:
        known = {entry.name.lower(): entry for entry in entries}
        if tag.lower() not in known:
            raise unknown_name(f"weights of torchvision:{base}", tag, known)
        return known[tag.lower()]
    return entries.DEFAULT if pretrained else next(iter(entries), None)


def _preprocessing(weights: Any, image_size: tuple[int, int] | None) -> ImagePreprocessing:
    if weights is None:
        return ImagePreprocessing(image_size or (224, 224))
    recipe = weights.transforms()
    crop = recipe.crop_size[0]
    return ImagePreprocessing(
        size=image_size or (crop, crop),
        mean=tuple(recipe.mean),
        std=tuple(recipe.std),
        interpolation=recipe.interpolation.value,
        crop_fraction=crop / recipe.resize_size[0],
    )
