"""Checks of what an `EnergyAdapter` is given: rows, labels and seeds."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError
from sourceward.adaptation.base import AdaptationResult

if TYPE_CHECKING:
    from sourceward.estimator.estimator import EnergyAdapter


def validated(estimator: "EnergyAdapter", X: Any, y: Any = "no_validation", *, reset: bool = False) -> Any:
    """Apply scikit-learn's checks, as input errors, and refuse values that are not finite."""
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinity, and found below
            checked = validate_data(estimator, X, y, dtype=np.float32, reset=reset, ensure_all_finite=False)
        if not isinstance(y, str):
            check_classification_targets(checked[1])
    except ValueError as error:
        raise InputError(str(error)) from None
    finite = np.isfinite(checked if isinstance(y, str) else checked[0]).all(1)
    if not finite.all():
        raise InputError(
            f"Expected finite features, but got NaN or infinity in {(~finite).sum()} of {len(finite)} "
            f"rows, the first at row {finite.argmin()}. Drop or impute them."
        )
    return checked


def check_finite(result: AdaptationResult) -> AdaptationResult:
    """Refuse a sample so far from the sources that it has no finite prediction."""
    finite = np.isfinite(result.probabilities).all(1)
    if not finite.all():
        raise InputError(
            f"Row {finite.argmin()} is so far from the sources that it has no finite prediction. "
            "Check its units."
        )
    return result


def shifted_part(estimator: "EnergyAdapter", X: Any, y: Any) -> tuple[Tensor, Tensor] | None:
    """Shifted samples and the numbers of their classes, on the device; None without any."""
    if X is None and y is None:
        return None
    if X is None or y is None:
        raise InputError("Expected `X_shifted` and `y_shifted` together, but got only one of them.")
    X, y = validated(estimator, X, y)
    unknown = sorted(set(y.tolist()) - set(estimator.classes_.tolist()))
    if unknown:
        raise InputError(f"`y_shifted` has classes that `y` does not have: {unknown}.")
    device = choose_device(estimator.device)
    label = torch.from_numpy(np.searchsorted(estimator.classes_, y))
    return torch.from_numpy(X).to(device), label.to(device)


def drawn_seed(random_state: Any, checkpoint: str | Path | None) -> int:
    """The seed of a fit."""
    if checkpoint is not None and random_state is None:
        raise InputError(
            "Expected a `random_state` beside `checkpoint`, but got None. Set one: a training that goes "
            "on has to draw the same numbers."
        )
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise InputError(f"Expected `random_state` to be an integer, but {error}.") from None
