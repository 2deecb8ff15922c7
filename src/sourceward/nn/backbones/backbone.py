"""`Backbone`: the common interface of all feature extractors."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sourceward._util.errors import InputError, unknown_name
from sourceward.nn.auxiliary import AUXILIARY
from sourceward.nn.auxiliary import ROTATION as ROTATION
from sourceward.nn.backbones.pointwise import use_pointwise
from sourceward.nn.backbones.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing
from sourceward.nn.backbones.tokenizers import Tokenizer
from sourceward.nn.domain_norm import DomainNormalized

FORMAT = 1
SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half of a character, which no encoding has and tokenizers refuse."""
SEVERAL = "several"
"""The family of backbones side by side."""


@dataclass
class BuildOptions:
    """Arguments of `create_backbone` that a family may use."""

    pretrained: bool = True
    pooling: str | None = None
    image_size: tuple[int, int] | None = None
    max_length: int | None = None
    local_files_only: bool = False


@dataclass
class Parts:
    """What a family returns: a network from batch to features, and what is needed to build it again."""

    network: nn.Module
    preprocessing: Preprocessing
    architecture: dict[str, Any] = field(default_factory=dict)
    pooling: str | None = None
    tokenizer: Tokenizer | None = None


class Backbone(nn.Module):
    """A network from images or texts to features of width `dim`.

    `prepare` turns raw inputs (uint8 or PIL images; strings) into a batch, `forward` turns a batch into
    (batch, dim) float32 features. `from_config` rebuilds it from `config()`, `state_dict()` and the files of
    `save_assets()`, without a network connection and without the original files.

    >>> from sourceward.nn.backbones import create_backbone
    >>> backbone = create_backbone("tiny:text").eval()
    >>> backbone(backbone.prepare(["a short text", "another"])).shape
    torch.Size([2, 64])
    """

    def __init__(self, parts: Parts, *, family: str, name: str, dim: int | None = None) -> None:
        super().__init__()
        self.network = parts.network
        self.preprocessing = parts.preprocessing
        self.architecture = parts.architecture
        self.pooling = parts.pooling
        self.tokenizer = parts.tokenizer
        self.auxiliary = nn.ModuleDict()
        self.auxiliary_sizes: dict[str, tuple[int, ...]] = {}
        self.domain_norm = 0
        self.family = family
        self.name = name
        self.batchnorm_frozen = False
        if family != "module":
            use_pointwise(self.network)
        self.dim = output_width(self.network, parts.preprocessing) if dim is None else dim

    @property
    def kind(self) -> str:
        return "image" if isinstance(self.preprocessing, ImagePreprocessing) else "text"

    @property
    def spec(self) -> str:
        return self.name if self.family == SEVERAL else f"{self.family}:{self.name}"

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def extra_repr(self) -> str:
        return f"{self.spec}, kind={self.kind}, dim={self.dim}"

    def forward(self, batch: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the (batch, dim) float32 features of a prepared batch."""
        if isinstance(batch, Tensor) != (self.kind == "image"):
            expected = "a float image tensor" if self.kind == "image" else "a dict of token tensors"
            raise InputError(
                f"Expected {expected} for the {self.kind} backbone {self.spec}, "
                f"but got {type(batch).__name__}. Use `prepare` to make a batch."
            )
        return self.network(batch).flatten(1).float()

    def prepare(self, items: Any) -> Any:
        """Turn raw inputs into a batch for `forward`, on the backbone's device.

        Args:
            items: for images a uint8 tensor (batch, channels, height, width), or a list of PIL images, uint8
                (height, width, channels) arrays or uint8 tensors of any sizes; for text a list of strings.
        """
        if isinstance(self.preprocessing, ImagePreprocessing):
            return self.preprocessing.prepare(items, self.device)
        if not is_texts(items):
            raise InputError(
                f"Expected a list of at least one text for the text backbone {self.spec}, but got "
                f"{_describe(items)}. Use an image backbone such as 'timm:resnet18' for images."
            )
        if any(SURROGATE.search(text) for text in items):
            raise InputError("Expected texts that are valid Unicode, but one has a lone surrogate.")
        if self.tokenizer is None:
            raise InputError(f"{self.spec} has no tokenizer. Pass `tokenizer=` to create_backbone.")
        tokens = self.tokenizer(list(items), self.preprocessing.max_length)
        return {key: value.to(self.device) for key, value in tokens.items()}

    def freeze_batchnorm(self, frozen: bool = True) -> "Backbone":
        """Use the stored batch norm statistics in training, too, so that samples do not affect each other."""
        self.batchnorm_frozen = frozen
        return self.train(self.training)

    def add_auxiliary(self, name: str, *sizes: int) -> None:
        """Add a network of `AUXILIARY`, saved with the weights."""
        if name not in AUXILIARY:
            raise unknown_name("auxiliary network", name, AUXILIARY)
        self.auxiliary[name] = AUXILIARY[name](self, *sizes).to(self.device)
        self.auxiliary_sizes[name] = sizes

    def use_domain_norm(self, sources: int) -> None:
        """Replace batch norm by that of DSON, see `nn.domain_norm`."""
        self.network, self.domain_norm = DomainNormalized(self.network, sources), sources

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        if self.batchnorm_frozen:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def config(self) -> dict[str, Any]:
        """Return everything but tensors and tokenizer files, as JSON values."""
        config = {
            "format": FORMAT,
            "family": self.family,
            "name": self.name,
            "kind": self.kind,
            "dim": self.dim,
            "pooling": self.pooling,
            "batchnorm_frozen": self.batchnorm_frozen,
            "architecture": self.architecture,
            "preprocessing": self.preprocessing.to_dict(),
        }
        if self.auxiliary:
            config["auxiliary"] = {name: self.auxiliary_sizes[name] for name in self.auxiliary}
        if self.domain_norm:
            config["domain_norm"] = self.domain_norm
        return json.loads(json.dumps(config))

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        state_dict: Mapping[str, Tensor] | None = None,
        *,
        assets: str | Path | None = None,
        module: nn.Module | None = None,
        elements: int | None = None,
    ) -> "Backbone":
        """Rebuild a backbone, from `config` and `assets` alone: nothing else is read or downloaded.

        Args:
            config: of `config()`.
            state_dict: its weights.
            assets: the folder given to `save_assets`.
            module: a user's own network.
            elements: most that its parameters may have, those of the file of its weights.
        """
        from sourceward.nn.backbones.factory import rebuild

        return rebuild(config, state_dict, assets=assets, module=module, elements=elements)

    def save_assets(self, folder: str | Path) -> None:
        """Write the tokenizer files, which `config()` cannot hold, below `folder`."""
        if self.tokenizer is not None:
            self.tokenizer.save(Path(folder))


def output_width(network: nn.Module, preprocessing: Preprocessing) -> int:
    """Return the feature width, measured by one pass over a blank input."""
    parameter = next(network.parameters(), None)
    device = parameter.device if parameter is not None else None
    batch: Any
    if isinstance(preprocessing, TextPreprocessing):
        ones = torch.ones(1, 2, dtype=torch.long, device=device)
        batch = {"input_ids": ones, "attention_mask": ones}
    else:
        batch = torch.zeros(1, len(preprocessing.mean), *preprocessing.size, device=device)
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            features = network(batch)
    except Exception as error:
        raise InputError(
            f"Expected a network from a batch to features, but {type(network).__name__} failed on "
            f"{_describe(batch)} ({error}). Give `image_size=`, or `dim=` to skip this check."
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not isinstance(features, Tensor) or features.ndim < 2:
        raise InputError(
            f"Expected features of shape (batch, dim), but {type(network).__name__} returned "
            f"{_describe(features)}. Wrap it in a module that returns one tensor."
        )
    return features.flatten(1).shape[1]


def reads(backbone: Backbone, size: tuple[int, int]) -> bool:
    """Whether an image backbone reads images of another size than its own, as most vision transformers do
    not."""
    assert isinstance(backbone.preprocessing, ImagePreprocessing)
    if size == backbone.preprocessing.size:
        return True
    try:
        return output_width(backbone.network, replace(backbone.preprocessing, size=size)) == backbone.dim
    except InputError:
        return False


def is_texts(items: Any) -> bool:
    return (
        isinstance(items, Sequence)
        and not isinstance(items, str | bytes)
        and len(items) > 0
        and all(isinstance(item, str) for item in items)
    )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a list of {type(value[0]).__name__}" if value else "an empty list"
    return type(value).__name__
