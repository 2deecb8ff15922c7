"""The files of a model folder, and how they become a model again."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sourceward._util.errors import InputError
from sourceward._util.reading import inside, read_regular, regular_size
from sourceward._util.storage import load_tensors, read_metadata, save_tensors, write_whole
from sourceward._util.values import Optional, Whole, check, damaged, read_json, short
from sourceward.adaptation.copies import Statistics, check_transforms
from sourceward.estimator import EnergyAdapter
from sourceward.estimator.file import describe, restore
from sourceward.nn.backbones import Backbone
from sourceward.nn.backbones.factory import SCHEMA as BACKBONE_SCHEMA
from sourceward.nn.backbones.tokenizers import FOLDER as TOKENIZER
from sourceward.training.run_folder import CONFIG
from sourceward.validation.expected_gain import SCHEMA as GAIN_SCHEMA

if TYPE_CHECKING:
    from sourceward.model.model import Model

FORMAT_VERSION = 1
FILES, CHECKSUM = "files", "sha256"
"""Keys of config.json: checksums of the other files, and of config.json itself without this key."""
OWN = ("format_version", "kind", "classes", "sources", "adapter", "adapt", "backbone", "tta", FILES)
"""Keys of config.json that build the model; the rest is `Model.info`."""
WEIGHTS, CARD = "model.safetensors", "README.md"
SCHEMA = {
    "format_version": Whole(),
    "kind": {"image", "text", "features"},
    "classes": [str],
    "sources": [str],
    "adapter": dict,
    "adapt": dict,
    "backbone": Optional(BACKBONE_SCHEMA),
    "tta": str,
    "expected_gain": Optional(GAIN_SCHEMA),
    "metrics": Optional({"adapted": Optional(float), "unadapted": Optional(float)}),
    FILES: Optional(dict),
    CHECKSUM: Optional(str),
}
"""Of config.json; `estimator.file` has that of `adapter`."""


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


def write_folder(model: "Model", folder: Path) -> None:
    """Write the files of a model; `config.json` comes last."""
    from sourceward.model.card import model_card

    save_tensors(folder / WEIGHTS, model.network.state_dict(), {"format_version": FORMAT_VERSION})
    if model.backbone is not None:
        model.backbone.save_assets(folder)
    config = describe_model(model)
    write_whole(folder / CARD, model_card(config))
    write_whole(folder / CONFIG, config_text(folder, config))


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
    _check_files(folder, config.get(FILES) or {}, {weights: read_metadata(folder / weights).get(CHECKSUM)})
    elements = sum(tensor.numel() for tensor in tensors.values())
    try:
        backbone = None
        if config["backbone"] is not None:
            backbone = Backbone.from_config(
                config["backbone"], assets=folder, module=module, elements=elements
            )
        adapter = restore(EnergyAdapter, tensors, config["adapter"], backbone)
        check_transforms(config["tta"], Statistics.of(adapter.network_))
        _check_names(config, adapter)
    except InputError:
        raise
    except Exception as error:  # of whatever the values lead to
        raise InputError(f"'{folder / weights}' does not fit its config.json ({short(error)}).") from None
    info = {key: value for key, value in config.items() if key not in OWN}
    return adapter, config["tta"], info


def _check_names(config: dict[str, Any], adapter: EnergyAdapter) -> None:
    """Refuse names beside the adapter that are not its own: pages and cards are written from them."""
    for name, own in (("classes", adapter.classes_.tolist()), ("sources", adapter.sources_)):
        if config[name] != [str(value) for value in own]:
            raise ValueError(f"its {name} are not those of its adapter")


def read_model_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    if regular_size(file) is None:
        unfinished = any(os.path.exists(folder / name) for name in ("checkpoint.safetensors", "run.json"))
        hint = "Its training has not finished: run the same `fit` again." if unfinished else "Check the path."
        raise InputError(f"Expected a model folder at '{folder}', but found no {CONFIG} there. {hint}")
    try:
        config = read_json(file)
        check(config, {"format_version": Whole()})
        version = config["format_version"]
        if version > FORMAT_VERSION:
            raise InputError(
                f"'{folder}' has format {version}, and this sourceward reads up to {FORMAT_VERSION}. "
                "It was written by a newer one: run `pip install -U sourceward`."
            )
        check(config, SCHEMA)
    except InputError:
        raise
    except ValueError as error:
        raise damaged(file, error) from None
    stated = config.pop(CHECKSUM, None)
    if stated is not None and stated != _checksum(config):
        raise InputError(
            f"'{file}' has changed since it was written: its checksum does not match. Restore a copy; if you "
            f"edited it yourself, remove its key {CHECKSUM!r}."
        )
    return config


def config_text(folder: Path, config: dict[str, Any]) -> str:
    """The text of config.json, with checksums of itself and of the other files in the folder."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.parent.name == TOKENIZER]
    files = {WEIGHTS: read_metadata(folder / WEIGHTS).get(CHECKSUM)}
    files |= {path.relative_to(folder).as_posix(): _file_checksum(path) for path in sorted(paths)}
    config = {**config, FILES: files}
    return json.dumps({**config, CHECKSUM: _checksum(config)}, indent=2) + "\n"


def _checksum(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _file_checksum(path: Path) -> str:
    return hashlib.sha256(read_regular(path)).hexdigest()


def _check_files(folder: Path, stated: dict[str, Any], known: dict[str, Any]) -> None:
    """Refuse files that are not those with which config.json was written."""
    for name, checksum in stated.items():
        if name == WEIGHTS:
            same = name not in known or known[name] == checksum
        else:
            same = inside(folder, folder / name) and _file_checksum(folder / name) == checksum
        if not same:
            raise InputError(
                f"'{folder / name}' is not the file with which {CONFIG} was written. Restore a copy of the "
                "whole folder."
            )
