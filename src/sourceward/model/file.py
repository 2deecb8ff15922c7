"""The files of a model folder, and how they become a model again."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sourceward._util.errors import InputError
from sourceward._util.storage import load_tensors
from sourceward.estimator import EnergyAdapter
from sourceward.estimator.file import describe, restore
from sourceward.nn.backbones import Backbone
from sourceward.training.run_folder import CONFIG

if TYPE_CHECKING:
    from sourceward.model.model import Model

FORMAT_VERSION = 1
OWN = ("format_version", "kind", "classes", "sources", "adapter", "adapt", "backbone", "tta")
"""Keys of config.json that build the model; the rest is `Model.info`."""
WEIGHTS, CARD = "model.safetensors", "README.md"


def describe_model(model: "Model") -> dict[str, Any]:
    """Everything but tensors and tokenizer, as JSON values."""
    backbone = model.backbone
    config = {
        "format_version": FORMAT_VERSION,
        "kind": model.kind,
        "classes": list(model.classes),
        "sources": list(model.sources),
        "adapter": describe(model.adapter),
        "adapt": asdict(model.settings),
        "backbone": None if backbone is None else backbone.config(),
        "tta": model.tta,
        **model.info,
    }
    return json.loads(json.dumps(config))


def read_folder(
    folder: Path, weights: str, module: torch.nn.Module | None
) -> tuple[EnergyAdapter, str, dict[str, Any]]:
    """The estimator with its backbone, on the host, the transforms, and the rest of config.json.

    Args:
        folder: of the model.
        weights: name of the file of tensors.
        module: the network of a backbone that is the user's own.
    """
    config = read_model_config(folder)
    tensors, _ = load_tensors(folder / weights)
    backbone = None
    if config["backbone"] is not None:
        backbone = Backbone.from_config(config["backbone"], assets=folder, module=module)
    meta = config["adapter"]
    try:
        adapter = restore(EnergyAdapter(**meta["params"]), tensors, meta, backbone)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise InputError(f"'{folder / weights}' does not fit its config.json ({first}).") from None
    info = {key: value for key, value in config.items() if key not in OWN}
    return adapter, config["tta"], info


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
        raise InputError(f"'{file}' is damaged, or was written by another program.") from None
    if version > FORMAT_VERSION:
        raise InputError(
            f"'{folder}' has format {version}, and this sourceward reads up to {FORMAT_VERSION}. "
            "It was written by a newer one: run `pip install -U sourceward`."
        )
    return config
