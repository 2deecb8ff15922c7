"""Build backbones by name, list them, and rebuild them from a config."""

import math
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.values import Optional, Whole, check
from sourceward.nn.backbones import from_hf, from_timm, from_torchvision, tiny
from sourceward.nn.backbones.backbone import FORMAT, SEVERAL, Backbone, BuildOptions, Parts
from sourceward.nn.backbones.preprocessing import (
    ImagePreprocessing,
    Preprocessing,
    TextPreprocessing,
    from_dict,
)
from sourceward.nn.backbones.resnet_v1 import SUFFIX, warn_of_stride
from sourceward.nn.backbones.several import Several, join, split_weights
from sourceward.nn.backbones.tokenizers import FOLDER, HashTokenizer, HfTokenizer, Tokenizer
from sourceward.nn.backbones.weights import OTHERWISE, Weights, is_default, load_weights, no_hub


class Family(Protocol):
    """A module that builds backbones by name, rebuilds them and lists its names."""

    __doc__: str | None

    def build(self, name: str, options: BuildOptions) -> Parts: ...

    def rebuild(self, name: str, architecture: dict[str, Any], pooling: str | None) -> nn.Module: ...

    def names(self) -> list[str]: ...

    def is_name(self, name: str) -> bool: ...


FAMILIES: dict[str, Family] = {
    "tiny": tiny,
    "torchvision": from_torchvision,
    "timm": from_timm,
    "hf": from_hf,
}


def create_backbone(
    spec: str | Path | nn.Module,
    *,
    weights: Weights | None = "default",
    pooling: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    max_length: int | None = None,
    local_files_only: bool = False,
    dim: int | None = None,
    preprocessing: Preprocessing | None = None,
    tokenizer: Any = None,
) -> Backbone:
    """Build a backbone.

    Args:
        spec: `"family:name"`, several of them joined by commas, a Hugging Face folder, or an `nn.Module`.
        weights: `"default"` for those of the library, None for random ones, or a .safetensors file, a state
            dict file (tensors only) or a mapping; classifier heads in these are ignored.
        pooling: `"cls"`, `"mean"` or `"pooler"`, for `hf:` models; None chooses by model.
        image_size: height and width, if not those of the weights.
        max_length: the longest text in tokens, if not that of the model.
        local_files_only: use the download caches only.
        dim: the feature width of an `nn.Module`, if a pass over a blank input cannot measure it.
        preprocessing: replaces the preprocessing of the weights.
        tokenizer: the Hugging Face tokenizer of an `nn.Module` that reads texts.

    >>> create_backbone("tiny:conv", image_size=28).dim
    128
    """
    if isinstance(spec, str) and "," in spec and not Path(spec).is_dir():
        names = spec.split(",")
        each = zip(names, split_weights(weights, len(names)))
        return join(
            [
                create_backbone(name, weights=own, image_size=image_size, local_files_only=local_files_only)
                for name, own in each
            ]
        )
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if isinstance(spec, Backbone):
        return spec
    if isinstance(spec, nn.Module):
        backbone = _own(spec, preprocessing, tokenizer, dim, size, max_length)
    else:
        family, name, label = _resolve(str(spec))
        _check_options(family, name, weights, pooling)
        options = BuildOptions(is_default(weights), pooling, size, max_length, local_files_only)
        parts = FAMILIES[family].build(name, options)
        parts.preprocessing = preprocessing or parts.preprocessing
        backbone = Backbone(parts, family=family, name=label)
    if weights is not None and not is_default(weights):
        load_weights(_bare(backbone), weights, label=backbone.spec)
        warn_of_stride(backbone.network, backbone.spec)
    return backbone


def list_backbones(filter: str | None = None) -> list[str]:
    """Return the specs that match a glob or contain a word; `"timm:*"` lists one family.

    `hf:` is represented by examples.

    >>> list_backbones("tiny:*")
    ['tiny:conv', 'tiny:text']
    """
    wanted = (filter or "*").lower()
    pattern = wanted if any(sign in wanted for sign in "*?[") else f"*{wanted}*"
    family = wanted.partition(":")[0]
    families = [family] if ":" in wanted and family in FAMILIES else list(FAMILIES)
    specs = (f"{family}:{name}" for family in families for name in FAMILIES[family].names())
    return [spec for spec in specs if any(fnmatchcase(part, pattern) for part in _both(spec.lower()))]


def _both(spec: str) -> tuple[str, str]:
    """Return a spec, and its name without the family."""
    return spec, spec.partition(":")[2]


def rebuild(
    config: Mapping[str, Any],
    state_dict: Mapping[str, Tensor] | None,
    *,
    assets: str | Path | None,
    module: nn.Module | None,
    elements: int | None = None,
) -> Backbone:
    """See `Backbone.from_config`."""
    check(config, SCHEMA, "backbone")
    if config.get("format", FORMAT) > FORMAT:
        raise InputError(
            f"Expected a backbone config of format {FORMAT} or older, but got {config['format']}. "
            "It was written by a newer sourceward: run `pip install -U sourceward`."
        )
    family, name, pooling = config["family"], config["name"], config.get("pooling")
    architecture = dict(config.get("architecture", {}))
    if family == "module":
        if module is None:
            raise InputError(
                f"This backbone is your own module {name!r}, whose code is not stored. "
                "Pass `module=`, an instance of it."
            )
        network = module
    elif family == SEVERAL:
        check(architecture, {"parts": [PART]}, "backbone.architecture")
        network = _several(architecture["parts"], config["preprocessing"], elements)
    elif family in FAMILIES:
        network = _network(family, name, architecture, pooling, elements)
    else:
        raise unknown_name("backbone family", family, FAMILIES)
    parts = Parts(network, from_dict(config["kind"], config["preprocessing"]), architecture, pooling)
    if isinstance(parts.preprocessing, TextPreprocessing):
        parts.tokenizer = _tokenizer(parts.preprocessing, assets)
    backbone = Backbone(parts, family=family, name=name, dim=config["dim"])
    if config.get("domain_norm"):
        backbone.use_domain_norm(config["domain_norm"])
    if state_dict is not None:
        load_weights(backbone.network, state_dict, label=backbone.spec)
    for auxiliary, sizes in config.get("auxiliary", {}).items():
        sizes = [sizes] if isinstance(sizes, int) else sizes
        check(sizes, [Whole(1)], f"backbone.auxiliary.{auxiliary}")
        if elements is not None and math.prod(sizes) * backbone.dim > elements:
            raise InputError(
                f"The auxiliary network {auxiliary!r} is larger than the weights that are to fit it."
            )
        backbone.add_auxiliary(auxiliary, *sizes)
    return backbone.freeze_batchnorm(config.get("batchnorm_frozen", False))


SCHEMA = {
    "format": Optional(Whole()),
    "family": str,
    "name": str,
    "kind": {"image", "text"},
    "dim": Whole(1),
    "pooling": Optional(set(from_hf.POOLINGS)),
    "batchnorm_frozen": Optional(bool),
    "architecture": Optional(dict),
    "preprocessing": dict,
    "auxiliary": Optional(dict),
    "domain_norm": Optional(Whole(1, 1000)),
}
"""Of `Backbone.config()`."""
PART = {"family": str, "name": str, "architecture": dict, "dim": Whole(1), "mean": [float], "std": [float]}
"""Of each of several backbones side by side."""
ARCHITECTURE = {"tiny": set[str](), "timm": {"img_size"}, "torchvision": {"image_size", "transform_input"}}
"""Arguments that a family's `build` may write to the config. Others, such as the path of a checkpoint, would
make its library read files."""


def _network(
    family: str, name: str, architecture: dict[str, Any], pooling: str | None, elements: int | None
) -> nn.Module:
    """Build the network of a config, which may be anybody's: without the Hub, no larger than its weights."""
    if family not in FAMILIES:
        raise unknown_name("backbone family", family, FAMILIES)
    other = sorted(architecture.keys() - ARCHITECTURE.get(family, architecture.keys()))
    if other:
        raise InputError(f"Expected no {other[0]!r} in the architecture of a {family} backbone.")
    if not FAMILIES[family].is_name(name):  # `hf-hub:` and `local-dir:` are names to timm
        raise InputError(f"Expected the name of a {family} model, but got {name!r}.")
    with no_hub():
        if elements is not None:
            with suppress(NotImplementedError, RuntimeError), torch.device("meta"):
                found = FAMILIES[family].rebuild(name, dict(architecture), pooling)
                if sum(parameter.numel() for parameter in found.parameters()) > elements:
                    raise InputError(f"{family}:{name} is larger than the weights that are to fit it.")
        return FAMILIES[family].rebuild(name, dict(architecture), pooling)


def _several(parts: list[dict[str, Any]], prepared: dict[str, Any], elements: int | None) -> Several:
    """Build the networks of a config side by side."""
    each = [(part["family"], part["name"], part["architecture"]) for part in parts]
    own: list[Any] = [
        from_dict("image", prepared | {name: p[name] for name in ("mean", "std")}) for p in parts
    ]
    networks = [_network(*part, None, elements) for part in each]
    return Several(networks, [each.mean for each in own], [each.std for each in own])


def _resolve(spec: str) -> tuple[str, str, str]:
    """Return the family, the name to build from, and the name to save, which holds no local path."""
    family, colon, name = spec.partition(":")
    folder = Path(name if colon and family == "hf" else spec)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(
                f"Expected a model in {str(folder)!r}, but it has no config.json (Hugging Face)."
            )
        return "hf", str(folder), folder.resolve().name
    if not colon:
        near = list_backbones(f"*:{spec}")
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise InputError(
            f"Expected 'family:name' (families: {', '.join(FAMILIES)}) or a folder, but got {spec!r}, "
            f"which is no folder.{hint}"
        )
    if family not in FAMILIES:
        raise unknown_name("backbone family", family, FAMILIES)
    if not name or not FAMILIES[family].is_name(name):
        known = FAMILIES[family].names()
        near = get_close_matches(name, known, n=5, cutoff=0.0)
        hint = f" `sourceward list backbones '{family}:*'` names all {len(known):,}."
        raise InputError(f"{unknown_name(f'{family} model', name, near)}{hint}")
    return family, name, name


def _check_options(family: str, name: str, weights: Weights | None, pooling: str | None) -> None:
    if pooling is not None and family != "hf":
        raise InputError(
            f"Expected `pooling` with 'hf:' models only, but got {pooling!r} for {family}:{name}."
        )
    if family in ("timm", "torchvision") and name.endswith(SUFFIX) and is_default(weights):
        raise InputError(
            f"{family} has no weights for {name}, the ResNet with its stride in the 1x1 convolution: "
            f"{OTHERWISE}"
        )


def _own(
    module: nn.Module,
    preprocessing: Preprocessing | None,
    tokenizer: Any,
    dim: int | None,
    image_size: tuple[int, int] | None,
    max_length: int | None,
) -> Backbone:
    wrapped = None if tokenizer is None else HfTokenizer(tokenizer)
    if preprocessing is None and tokenizer is not None:
        preprocessing = TextPreprocessing("own", max_length or min(512, tokenizer.model_max_length))
    parts = Parts(module, preprocessing or ImagePreprocessing(image_size or (224, 224)), tokenizer=wrapped)
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    return Backbone(parts, family="module", name=name, dim=dim)


def _tokenizer(preprocessing: TextPreprocessing, assets: str | Path | None) -> Tokenizer | None:
    if preprocessing.tokenizer == "hash":
        return HashTokenizer(tiny.BUCKETS)
    if assets is None:
        return None  # tokenized inputs still work; `prepare` raises an error
    folder = Path(assets) / FOLDER
    if not folder.is_dir():
        raise InputError(
            f"Expected the tokenizer in {str(folder)!r}, but it is not there. Save it with the model."
        )
    return HfTokenizer.load(folder)


def _bare(backbone: Backbone) -> nn.Module:
    """Return the network without the pooling around it, with the key names of its library."""
    return backbone.network.model if isinstance(backbone.network, from_hf.Pooled) else backbone.network
