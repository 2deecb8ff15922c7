"""What a saved `EnergyAdapter` tells beside its tensors, and how it becomes one again."""

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from sourceward.validation.leave_one_domain_out import ExpectedGain

if TYPE_CHECKING:
    from sourceward.estimator.estimator import EnergyAdapter


def describe(estimator: "EnergyAdapter") -> dict[str, Any]:
    """Everything but the tensors of a fitted estimator, as JSON values."""
    from sourceward import __version__

    names = getattr(estimator, "feature_names_in_", None)
    return {
        "kind": "EnergyAdapter",
        "version": __version__,
        "params": _params(estimator),
        "classes": estimator.classes_.tolist(),
        "classes_dtype": estimator.classes_.dtype.str,
        "sources": estimator.sources_,
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else names.tolist(),
        "n_iter": estimator.n_iter_,
        "seed": estimator._seed,
        "num_steps": estimator.num_steps_,
        "source_weights": estimator.source_weights_,
        "expected_gain": None if estimator.expected_gain_ is None else estimator.expected_gain_.to_dict(),
    }


def restore(estimator: "EnergyAdapter", tensors: dict[str, Tensor], meta: dict[str, Any]) -> "EnergyAdapter":
    """Fit an estimator that has its settings with what `describe` told."""
    estimator.classes_ = np.array(meta["classes"], dtype=np.dtype(meta["classes_dtype"]))
    estimator.sources_ = list(meta["sources"])
    estimator.n_features_in_ = meta["n_features_in"]
    if meta["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(meta["feature_names_in"], dtype=object)
    estimator.n_iter_, estimator._seed, estimator._head = meta["n_iter"], meta["seed"], estimator.head
    told, source_weights = meta.get("expected_gain"), meta.get("source_weights")
    estimator.source_weights_ = None if source_weights is None else tuple(source_weights)
    estimator.expected_gain_ = None if told is None else ExpectedGain(**told)
    estimator.num_steps_ = meta.get("num_steps", estimator.num_steps)
    adapts = estimator.num_steps_ > 0 if estimator.expected_gain_ is None else estimator.expected_gain_.adapts
    estimator.adapts_ = bool(adapts)
    estimator.network_ = estimator._network(len(estimator.sources_), estimator.n_features_in_)
    estimator.network_.load_state_dict(tensors)
    # As after `fit`: torch multiplies in another order where a gradient may be asked for.
    estimator.network_.requires_grad_(False).eval()
    return estimator


def _params(estimator: "EnergyAdapter") -> dict[str, Any]:
    params = {k: v.item() if isinstance(v, np.generic) else v for k, v in estimator.get_params().items()}
    params["checkpoint"] = None
    params["head"] = estimator._head  # as fitted, whatever the setting says since
    if not isinstance(params["random_state"], int | None):
        params["random_state"] = estimator._seed
    return params
