"""What a saved `EnergyAdapter` holds beside its tensors, and how it is restored."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward._util.storage import load_tensors
from sourceward._util.values import Optional, Whole, check, short
from sourceward.nn import Network, Projected
from sourceward.settings import AdaptSettings, TrainSettings
from sourceward.validation.expected_gain import SCHEMA as GAIN_SCHEMA
from sourceward.validation.expected_gain import ExpectedGain
from sourceward.validation.stream import SCHEMA as STREAM_SCHEMA
from sourceward.validation.stream import StreamGains
from sourceward.validation.trust import SCHEMA as TRUST_SCHEMA
from sourceward.validation.trust import Trust

if TYPE_CHECKING:
    from sourceward.estimator.estimator import EnergyAdapter


def describe(estimator: "EnergyAdapter") -> dict[str, Any]:
    """Everything but the tensors of a fitted estimator, as JSON values."""
    from sourceward import __version__

    names, gain = getattr(estimator, "feature_names_in_", None), estimator.expected_gain_
    return {
        "kind": "EnergyAdapter",
        "version": __version__,
        "params": _params(estimator),
        "classes": estimator.classes_.tolist(),
        "classes_dtype": estimator.classes_.dtype.str,
        "sources": estimator.sources_,
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else names.tolist(),
        "n_iter": int(estimator.n_iter_),
        "seed": estimator._seed,
        "num_steps": int(estimator.num_steps_),
        "adapts": estimator.adapts_,
        "source_weights": estimator.source_weights_,
        "tta": estimator.tta_,
        "tta_leads": list(estimator.tta_thresholds_),
        "expected_gain": None if gain is None else gain.to_dict(),
        "trust": None if estimator.trust_ is None else estimator.trust_.to_dict(),
        "stream": None if estimator.stream_ is None else estimator.stream_.to_dict(),
        "dim": estimator.network_.dim,
    }


def read(kind: type["EnergyAdapter"], path: str | Path) -> "EnergyAdapter":
    """The estimator in a file."""
    tensors, meta = load_tensors(path)
    if meta.get("kind") != "EnergyAdapter":
        raise InputError(f"Expected an EnergyAdapter in '{path}', but it holds something else.")
    try:
        return restore(kind, tensors, meta)
    except Exception as error:  # of whatever the values lead to
        raise InputError(
            f"'{path}' was written by sourceward {meta.get('version')}, which this version cannot read "
            f"({short(error)}). Use that version, or fit again."
        ) from None


SCHEMA = {
    "params": dict,
    "classes": list,
    "classes_dtype": str,
    "sources": list,
    "n_features_in": Whole(1),
    "feature_names_in": Optional([str]),
    "n_iter": Whole(),
    "seed": Whole(),
    "num_steps": Whole(),
    "adapts": bool,
    "source_weights": Optional([float]),
    "tta": str,
    "tta_leads": Optional([float]),
    "expected_gain": Optional(GAIN_SCHEMA),
    "trust": Optional(TRUST_SCHEMA),
    "stream": Optional(STREAM_SCHEMA),
    "dim": Whole(1),
}
"""Of what `describe` returns. Earlier files have `tta_thresholds`, which are probabilities: as leads (see
`tta.lead`) they would stop more samples than validation allowed. They are not read: all copies are made."""


def restore(
    kind: type["EnergyAdapter"],
    tensors: dict[str, Tensor],
    meta: dict[str, Any],
    backbone: torch.nn.Module | None = None,
) -> "EnergyAdapter":
    """An estimator of what `describe` wrote, and its tensors. Wrong values may raise any exception.

    Args:
        kind: `EnergyAdapter`.
        tensors: of the network.
        meta: from `describe`.
        backbone: of a model folder, without its weights.
    """
    check(meta, SCHEMA, "adapter")
    estimator = kind(**{**meta["params"], "checkpoint": None})  # a file names no other
    estimator.check_settings()
    estimator.classes_ = _classes(meta["classes"], np.dtype(meta["classes_dtype"]))
    estimator.sources_ = list(meta["sources"])
    estimator.n_features_in_ = meta["n_features_in"]
    if meta["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(meta["feature_names_in"], dtype=object)
    estimator._seed, gain = meta["seed"], meta["expected_gain"]
    shape = len(estimator.sources_), len(estimator.classes_), meta["dim"], estimator.head
    with torch.device("meta"):
        elements = sum(tensor.numel() for tensor in Network(*shape).state_dict().values())
    if meta["dim"] != meta["n_features_in"]:
        elements += meta["dim"] * meta["n_features_in"]
    if elements > sum(tensor.numel() for tensor in tensors.values()):
        raise ValueError("its tensors are too small for its settings")  # before memory is allocated
    network = Network(*shape)
    if meta["dim"] != meta["n_features_in"]:
        backbone = Projected(backbone, torch.zeros(meta["n_features_in"], meta["dim"]))
    network.backbone = backbone
    network.load_state_dict(tensors)
    # As after `fit`: torch multiplies in another order where a gradient may be asked for.
    network.requires_grad_(False).eval()
    weights = meta["source_weights"]
    estimator.source_weights_ = None if weights is None else tuple(weights)
    estimator.tta_, estimator.tta_thresholds_ = meta["tta"], tuple(meta.get("tta_leads") or ())
    estimator.expected_gain_ = None if gain is None else ExpectedGain(**gain)
    trust = meta.get("trust")
    estimator.trust_ = None if trust is None else Trust.from_dict(trust)
    stream = meta.get("stream")
    estimator.stream_ = None if stream is None else StreamGains.from_dict(stream)
    settings: AdaptSettings = estimator._settings(meta["num_steps"])
    estimator.set_network(network, settings if meta["adapts"] else settings.off())
    estimator.n_iter_ = meta["n_iter"]
    return estimator


def _classes(names: list[Any], kind: np.dtype) -> np.ndarray:
    """The classes in the type that they had; one that would take memory without need is refused."""
    longest = max((len(name) for name in names if isinstance(name, str)), default=0)
    if kind.kind not in "biufUO" or kind.itemsize > max(4 * longest, 16):
        raise ValueError(f"its classes cannot be of type {kind.str}")
    return np.array(names, dtype=kind)


def _params(estimator: "EnergyAdapter") -> dict[str, Any]:
    params = {k: v.item() if isinstance(v, np.generic) else v for k, v in estimator.get_params().items()}
    params["checkpoint"] = None
    params["head"] = estimator._head  # as fitted, whatever the setting is now
    params["train"] = (
        asdict(params["train"]) if isinstance(params["train"], TrainSettings) else params["train"]
    )
    if not isinstance(params["random_state"], int | None):
        params["random_state"] = estimator._seed
    return params
