"""What an `EnergyAdapter` is given: checks of rows, labels and seeds; one labelled part per source."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError, unknown_name
from sourceward._util.reading import printable
from sourceward.adaptation.base import AdaptationResult
from sourceward.functional.statistics import value_range_problem
from sourceward.validation.folds import Source

if TYPE_CHECKING:
    from sourceward.estimator.estimator import EnergyAdapter


def validated(estimator: "EnergyAdapter", X: Any, y: Any = "no_validation", *, reset: bool = False) -> Any:
    """Apply scikit-learn's checks, as input errors, and refuse values that are not finite."""
    try:
        kind = getattr(getattr(X, "dtype", None), "kind", None)
        kind = np.asarray(X).dtype.kind if isinstance(X, list | tuple) else kind
        if kind == "c":
            raise ValueError("Complex data not supported: expected real features.")
        if kind in ("m", "M"):
            raise ValueError("Expected real features, but got dates. Convert them to numbers.")
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinity, and found below
            checked = validate_data(estimator, X, y, dtype=np.float32, reset=reset, ensure_all_finite=False)
        if not isinstance(y, str):
            _check_labels(checked[1])
            check_classification_targets(checked[1])
        if reset:
            check_text("names of columns", getattr(estimator, "feature_names_in_", np.array([])))
    except (ValueError, OverflowError) as error:
        raise InputError(str(error)) from None
    check_finite_rows(checked if isinstance(y, str) else checked[0])
    return checked


def _check_labels(y: np.ndarray) -> None:
    """Refuse labels that a file cannot hold, before the training rather than when it is saved."""
    plain = all(isinstance(v, str | int | float | bool) for v in y.tolist()) if y.dtype == object else None
    if plain is False or (plain is None and y.dtype.kind not in "biufU"):
        what = type(y[0]).__name__
        raise ValueError(
            f"Expected labels that are text or numbers, but got {what}. Convert them, as by str."
        )
    check_text("labels", y)


def check_text(what: str, values: np.ndarray) -> None:
    """Refuse names that are not valid Unicode: no file, page or terminal takes them."""
    for value in dict.fromkeys(values.tolist()) if values.dtype.kind in "UO" else ():
        if isinstance(value, str) and printable(value) != value:
            raise InputError(f"Expected {what} that are valid Unicode, but got {value!r}. Rename it.")


def feature_matrix(X: Any, width: int) -> np.ndarray:
    """Features (n, width) as float32, by the rule of `validated`, for callers without column names."""
    try:
        rows = np.asarray(X.detach().float().cpu() if isinstance(X, Tensor) else X)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"Expected a matrix of features, but {error}.") from None
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        raise InputError(
            f"Expected a matrix of real features, but got {rows.dtype} of shape {rows.shape}. "
            "Pass one vector of numbers for each sample."
        )
    if rows.shape[1] != width:
        raise InputError(
            f"Expected features of width {width}, but got {rows.shape[1]}. "
            "Use the extractor that the model was trained with."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinity, and found below
        rows = rows.astype(np.float32)
    check_finite_rows(rows)
    return rows


def check_finite_rows(rows: np.ndarray) -> None:
    """Refuse features that are NaN, infinite, or too large for float32."""
    finite = np.isfinite(rows).all(1)
    if not finite.all():
        raise InputError(
            f"Expected finite features, but got NaN or infinity in {(~finite).sum()} of {len(finite)} "
            f"rows, the first at row {finite.argmin()}. Drop or impute them."
        )


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


def encode_sources(
    X: np.ndarray, y: np.ndarray, sample_domain: Any
) -> tuple[np.ndarray, np.ndarray, list[Any], np.ndarray]:
    """Rows of the sources, the sources' names in sorted order, and each row's source number."""
    if sample_domain is None:
        return X, y, ["source"], np.zeros(len(X), dtype=np.int64)
    domain = _plain(np.asarray(sample_domain))
    if domain.ndim == 0:  # one value for all rows, as in SKADA
        domain = np.repeat(domain, len(X))
    if domain.shape != (len(X),):
        raise InputError(
            f"Expected `sample_domain` to have one entry per row of X, shape ({len(X)},), "
            f"but got shape {domain.shape}."
        )
    if domain.dtype.kind == "i" and (domain < 0).any():
        keep = domain >= 0  # SKADA marks target rows by negative numbers
        X, y, domain = X[keep], y[keep], domain[keep]
        if not len(domain):
            raise InputError(
                "Expected source rows in `sample_domain` (0 or more), but every entry is negative, which "
                "marks target rows."
            )
    names, source = np.unique(domain, return_inverse=True)
    return X, y, names.tolist(), source


def _plain(domain: np.ndarray) -> np.ndarray:
    """Names or integers; whole numbers in a column of floats or objects are integers, so that -1 stays -1."""
    if domain.dtype == object:
        domain = np.asarray(domain.tolist())
    if domain.dtype.kind == "f" and (domain == np.trunc(domain)).all() and np.isfinite(domain).all():
        domain = domain.astype(np.int64)
    if domain.dtype.kind not in "iubU":
        raise InputError("Expected names or integers in `sample_domain`, but got missing or other values.")
    check_text("names in `sample_domain`", domain)
    return domain


def split_sources(
    X: np.ndarray,
    label: np.ndarray,
    source: np.ndarray,
    names: list[Any],
    classes: np.ndarray,
    allow_missing: bool,
) -> list[Source]:
    """One `Source` per source domain, after checking that each can train an energy."""
    if len(classes) < 2:
        raise InputError(f"Expected 2 or more classes in `y`, but got 1 class: {classes.tolist()}.")
    parts = []
    for number, name in enumerate(names):
        rows = source == number
        if rows.sum() < 2:
            raise InputError(
                f"Source {name!r} has one sample; an energy needs 2 or more. Add samples or drop the source."
            )
        missing = np.setdiff1d(np.arange(len(classes)), label[rows])
        if len(missing) and not allow_missing:
            raise InputError(
                f"Source {name!r} has no samples of class {classes.tolist()[missing[0]]!r}; its energy "
                "cannot keep this label. Remove the class, add samples, or pass allow_missing=True."
            )
        feature, numbers = torch.from_numpy(X[rows]), torch.from_numpy(label[rows].astype(np.int64))
        parts.append(Source(feature, numbers))
    wrong = value_range_problem(X)
    if wrong:
        raise InputError(" ".join(wrong))
    return parts


def held_out(label: Tensor) -> Tensor:
    """Which rows to calibrate on and not to train on: every tenth of each class that has ten."""
    held = torch.zeros(len(label), dtype=torch.bool, device=label.device)
    for number in label.unique():
        rows = torch.nonzero(label == number).flatten()
        held[rows[9::10]] = True
    return held


def fingerprint_of(parts: Sequence[Any], shifted: Any, settings: tuple[Any, ...]) -> str:
    """Of everything the training depends on: a checkpoint of anything else must not be resumed."""
    digest = hashlib.sha256(repr(settings).encode())
    for x, y in [*parts, *([shifted] if shifted else [])]:
        digest.update(x.cpu().numpy().tobytes())
        digest.update(y.cpu().numpy().tobytes())
    return digest.hexdigest()


def source_numbers(sources: Sequence[Any] | None, known: Sequence[Any]) -> tuple[int, ...] | None:
    """Numbers of the sources that are named; None where none are, for all."""
    if sources is None:
        return None
    if not len(sources):
        names = ", ".join(map(str, known))
        raise InputError(f"Expected one or more `sources`, but got none. Known: {names}.")
    number = {name: place for place, name in enumerate(known)}
    for name in sources:
        if name not in number:
            raise unknown_name("source", name, map(str, known))
    return tuple(number[name] for name in sources)
