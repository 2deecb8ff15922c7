"""From one matrix and a domain column to one labelled part per source, with clear errors."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError, unknown_name
from sourceward.functional.statistics import value_range_problem
from sourceward.validation.folds import Source


def encode_sources(
    X: np.ndarray, y: np.ndarray, sample_domain: Any
) -> tuple[np.ndarray, np.ndarray, list[Any], np.ndarray]:
    """Rows of the sources, the sources' names in sorted order, and each row's source number."""
    if sample_domain is None:
        return X, y, ["source"], np.zeros(len(X), dtype=np.int64)
    domain = _plain(np.asarray(sample_domain))
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
