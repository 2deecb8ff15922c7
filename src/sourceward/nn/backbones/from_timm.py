"""`timm:NAME` or `timm:NAME.TAG`, without the classifier; the pretrained config is the preprocessing."""

import math
from typing import Any

from torch import nn

from sourceward._util.errors import InputError
from sourceward.nn.backbones.backbone import BuildOptions, Parts
from sourceward.nn.backbones.preprocessing import INTERPOLATIONS, ImagePreprocessing
from sourceward.nn.backbones.resnet_v1 import split_name, stride_in_1x1
from sourceward.nn.backbones.weights import OTHERWISE, hub_file, no_download, url_cache


def build(name: str, options: BuildOptions) -> Parts:
    import timm

    plain, v1 = split_name(name)
    settings = timm.get_pretrained_cfg(plain)
    architecture: dict[str, Any] = {}
    if options.image_size and settings is not None and settings.fixed_input_size:
        architecture["img_size"] = list(options.image_size)
    if options.pretrained:
        network = _pretrained(plain, architecture, options.local_files_only)
    else:
        network = rebuild(name, architecture, None)
    # The pretrained config belongs to v1.5 weights; v1 files use the original preprocessing.
    size = options.image_size
    preprocessing = ImagePreprocessing(size or (224, 224)) if v1 else _preprocessing(network, size)
    return Parts(network, preprocessing, architecture)


def rebuild(name: str, architecture: dict[str, Any], pooling: str | None) -> nn.Module:
    import timm

    plain, v1 = split_name(name)
    network = timm.create_model(plain, pretrained=False, num_classes=0, **architecture)
    return stride_in_1x1(network, name) if v1 else network


def names() -> list[str]:
    import timm

    return list(timm.list_models())


def is_name(name: str) -> bool:
    import timm

    plain = split_name(name)[0]
    base, _, tag = plain.partition(".")
    return timm.is_model(base) and (not tag or plain in timm.list_pretrained(f"{base}.*"))


def _pretrained(name: str, architecture: dict[str, Any], local_files_only: bool) -> nn.Module:
    import timm

    settings = timm.get_pretrained_cfg(name)
    remedy = f"Connect to the internet once, {OTHERWISE}"
    if settings is None or not settings.has_weights:
        raise InputError(f"timm has no weights for {name!r}: {OTHERWISE}")
    options = dict(architecture, pretrained=True, num_classes=0)
    try:
        if settings.hf_hub_id:
            files = (settings.hf_hub_filename,) if settings.hf_hub_filename else _FILES
            file = hub_file(settings.hf_hub_id, files, local_files_only=local_files_only)
            if file is None:
                raise no_download(f"the weights of timm:{name}", remedy)
            # timm remaps old names as it loads, so it reads the file rather than us.
            return timm.create_model(name, pretrained_cfg_overlay={"file": file}, **options)
        with url_cache(str(settings.url), local_files_only=local_files_only):
            return timm.create_model(name, **options)
    except OSError as error:
        raise no_download(f"the weights of timm:{name}", remedy, error) from error


def _preprocessing(network: nn.Module, image_size: tuple[int, int] | None) -> ImagePreprocessing:
    from timm.data import resolve_model_data_config

    data = resolve_model_data_config(network)
    size = image_size or tuple(data["input_size"][1:])
    resized = math.floor(size[0] / data["crop_pct"])  # timm rounds down; the fraction keeps that number exact
    return ImagePreprocessing(
        size=size,
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        interpolation=data["interpolation"] if data["interpolation"] in INTERPOLATIONS else "bicubic",
        crop_fraction=size[0] / resized,
        keep_aspect=data["crop_mode"] != "squash",
    )


_FILES = ("model.safetensors", "pytorch_model.bin")
