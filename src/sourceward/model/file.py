"""What a model folder tells beside its tensors, and how it becomes a network again."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sourceward._util.errors import InputError
from sourceward._util.storage import load_tensors
from sourceward.nn import Network
from sourceward.nn.backbones import Backbone
from sourceward.nn.heads import HEADS
from sourceward.nn.projection import Projected

if TYPE_CHECKING:
    from sourceward.model.model import Model

FORMAT_VERSION = 3
OWN = (
    "format_version",
    "kind",
    "classes",
    "sources",
    "network",
    "backbone",
    "projected_from",
    "adapt",
    "views",
)
"""Keys of config.json that build the model; the rest is `Model.info`."""
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def describe_model(model: "Model") -> dict[str, Any]:
    """Everything but tensors and tokenizer, as JSON values."""
    network, backbone, projection = model.network, model.backbone, model.projection
    shape = {"sources": network.sources, "classes": network.classes, "dim": network.dim}
    shape["hidden"] = network.energy.matrices[0].shape[1]
    head = next(name for name in HEADS if type(network.head) is HEADS[name])
    config = {
        "format_version": FORMAT_VERSION,
        "kind": model.kind,
        "classes": list(model.classes),
        "sources": list(model.sources),
        "network": {**shape, "head": head, "dropout": network.energy.dropout},
        "backbone": None if backbone is None else backbone.config(),
        "projected_from": None if projection is None else len(projection.projection),
        "adapt": asdict(model.settings),
        "views": model.views,
        **model.info,
    }
    return json.loads(json.dumps(config))


def restore_network(
    folder: Path, config: dict[str, Any], weights: str, module: torch.nn.Module | None
) -> Network:
    """The network of a folder, on the host. `module` is that of a backbone that is the user's own."""
    tensors, _ = load_tensors(folder / weights)
    backbone: torch.nn.Module | None = None
    if config["backbone"] is not None:
        backbone = Backbone.from_config(config["backbone"], assets=folder, module=module)
    if config["projected_from"] is not None:
        backbone = Projected(backbone, torch.zeros(config["projected_from"], config["network"]["dim"]))
    network = Network(**config["network"], backbone=backbone)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise InputError(f"'{folder / weights}' does not fit its config.json ({first}).") from None
    return network


def read_model_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    if not file.is_file():
        unfinished = (folder / "checkpoint.safetensors").exists() or (folder / "run.json").exists()
        hint = "Its training has not finished: run the same `fit` again." if unfinished else "Check the path."
        raise InputError(f"Expected a model folder at '{folder}', but found no {CONFIG} there. {hint}")
    try:
        config = json.loads(file.read_text())
        version = int(config["format_version"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"'{file}' is damaged, or of another program.") from None
    if version > FORMAT_VERSION:
        raise InputError(
            f"'{folder}' has format {version}, and this sourceward reads up to {FORMAT_VERSION}. "
            "It was written by a newer one: run `pip install -U sourceward`."
        )
    return config
