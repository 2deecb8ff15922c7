"""Readers of feature vectors in .npz and .safetensors files. Nothing is unpickled."""

import json
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.reading import check_expanded, check_name, check_regular, open_regular
from sourceward.data.dataset import DomainDataset, Problem, build, natural_order, zero_based
from sourceward.data.table import SYNONYMS, read_split

ROLES = {
    "features": ("features", "feature", "x", "embeddings", "embedding", "vectors"),
    "label": SYNONYMS["label"],
    "domain": SYNONYMS["domain"],
}
"""Accepted names of the required arrays; the first is the one that this library writes."""
LAYOUT = (
    "`features` (N, D), `label` (N,) and `domain` (N,), optionally `domains` and `classes` (their names), "
    "`is_validation` (N,) and `held_out` (a domain's name)"
)


def read_features(path: str | Path) -> DomainDataset:
    """Read features with labels and domains, as codes or names, from an .npz or .safetensors file.

    A .safetensors file holds no text: there, `domains`, `classes` and `held_out` are JSON in its metadata.
    """
    arrays = load_numpy(path) if Path(path).suffix.lower() == ".npz" else load_safetensors(path)
    if isinstance(arrays, np.ndarray):
        raise InputError(f"'{path}' holds one array without a name: expected {LAYOUT}.")
    found = {role: find_array(arrays, role, path) for role in ROLES}
    absent = [role for role, name in found.items() if name is None]
    if absent:
        raise InputError(
            f"'{path}' has no {' and no '.join(map(repr, absent))}: expected {LAYOUT}, "
            f"found {', '.join(arrays) or 'nothing'}."
        )
    arrays |= {role: arrays.pop(str(name)) for role, name in found.items()}
    features = _matrix(arrays["features"], path)
    for key in {"label", "domain", "is_validation"} & arrays.keys():
        if arrays[key].shape != (len(features),):
            raise InputError(
                f"Expected `{key}` in '{path}' to have shape ({len(features)},), one value for each row of "
                f"`features`, but got {arrays[key].shape}."
            )
    labels, classes, one_based = _names(arrays["label"], arrays.get("classes"), str(path))
    domains, domain_names, _ = _names(arrays["domain"], arrays.get("domains"), str(path))
    ids = [f"{row:07d}" for row in range(len(features))]
    problems = [
        Problem("nonfinite", ids[row], f"Row {row} holds NaN or infinity.", domains[row])
        for row in np.flatnonzero(~np.isfinite(features).all(axis=1))
    ]
    if one_based:
        message = "Labels count from 1; they are read as counting from 0."
        problems.append(Problem("one_based_labels", "label", message))
    if "is_validation" in arrays:
        split: Any = np.where(arrays["is_validation"], "val", "train").tolist()
    else:
        words: Any = {key: a for key, a in arrays.items() if a.shape == (len(features),)}
        split, notes = read_split(words, None, list(range(len(features))), str(path))
        problems += notes
    return build(
        "features",
        features,
        labels,
        domains,
        ids,
        classes=classes,
        domain_names=domain_names,
        split=split,
        problems=problems,
        targets=[str(name) for name in np.atleast_1d(arrays.get("held_out", np.array([], dtype=str)))],
        name=str(path),
    )


def find_array(arrays: Mapping[str, Any], role: str, where: str | Path) -> str | None:
    """Return the array for `role`: the one of that name, else the only one with an accepted name."""
    if role in arrays:
        return role
    usual = [name for name in arrays if name.strip().lower() in ROLES[role]]
    if role == "domain" and len(usual) > 1 and "domains" in usual:
        usual.remove("domains")  # the names of the codes in the other array
    if len(usual) > 1:
        raise InputError(
            f"'{where}' has {' and '.join(map(repr, usual))}, and each may be the {role}: rename the "
            f"right one to {role!r}."
        )
    return usual[0] if usual else None


def _matrix(features: np.ndarray, path: str | Path) -> np.ndarray:
    if features.ndim == 2 and not len(features):
        raise InputError(f"`features` in '{path}' has no rows: its shape is {features.shape}.")
    real = np.issubdtype(features.dtype, np.number) and not np.issubdtype(features.dtype, np.complexfloating)
    if features.ndim != 2 or not real or not features.size:
        raise InputError(
            f"Expected `features` in '{path}' to be real numbers of shape (N, D), but got {features.dtype} "
            f"of shape {features.shape}. Flatten or pool them to one vector for each sample."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinity, and reported
        return features.astype(np.float32)


def _names(
    values: np.ndarray, names: np.ndarray | None, where: str
) -> tuple[list[str], tuple[str, ...], bool]:
    """Return the name of each value, all names in order, and whether codes count from 1."""
    if names is not None and names.ndim != 1:
        raise InputError(
            f"Expected `classes` and `domains` in '{where}' to be lists of names, but got one of shape "
            f"{names.shape}."
        )
    if names is None or not np.issubdtype(values.dtype, np.integer):
        texts = [str(value) for value in values.tolist()]
        known = natural_order(texts) if names is None else tuple(str(name) for name in names)
        return texts, known, False
    known = tuple(str(name) for name in names)
    codes, one_based = zero_based(values, len(known), where)
    return [known[code] for code in codes], known, one_based


def load_numpy(path: str | Path, wrong: str | None = None) -> Any:
    """Return the array of an .npy, or the arrays of an .npz by name; `wrong` is the error for other files."""
    try:
        with open_regular(path) as stream:
            if zipfile.is_zipfile(stream):
                sizes = [member.file_size for member in zipfile.ZipFile(stream).infolist()]
                check_expanded(path, os.fstat(stream.fileno()).st_size, sum(sizes))
            stream.seek(0)
            loaded = np.load(stream, allow_pickle=False)
            arrays = {"": loaded} if isinstance(loaded, np.ndarray) else {**loaded}
            for array in arrays.values():
                _check_text(array)
            return loaded if isinstance(loaded, np.ndarray) else arrays
    except InputError:
        raise
    except Exception:  # zipfile, zlib and NumPy raise different errors for truncated files
        layout = (
            f"'{path}' cannot be read as an .npz of plain arrays. Expected {LAYOUT}; "
            "text must be stored as dtype 'U', not as Python objects."
        )
        raise InputError(wrong or layout) from None


def _check_text(array: np.ndarray) -> None:
    """Refuse characters beyond Unicode, of which NumPy makes texts that break the interpreter's own rules."""
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).reshape(-1).view(array.dtype.str[0] + "u4")
        if codes.max() > sys.maxunicode:
            raise ValueError("a character beyond Unicode")


def load_safetensors(path: str | Path) -> dict[str, np.ndarray]:
    """Return arrays by name; domain and class names come from the JSON metadata."""
    from safetensors import SafetensorError, safe_open

    arrays: dict[str, np.ndarray] = {}
    check_name(path)
    check_regular(path)
    try:
        with safe_open(str(path), framework="pt") as archive:
            metadata: dict[str, str] = archive.metadata() or {}
            for key in archive.keys():  # noqa: SIM118 (not a dict)
                tensor = archive.get_tensor(key)
                arrays[key] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    except (SafetensorError, OSError, TypeError, RuntimeError) as error:  # types that NumPy or torch lack
        raise InputError(f"'{path}' is not a complete .safetensors file ({error}). Write it again.") from None
    for key in {"domains", "classes", "held_out"} & metadata.keys():
        names = _json_or_text(metadata[key])
        arrays[key] = np.array([str(name) for name in names] if isinstance(names, list) else str(names))
    return arrays


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
