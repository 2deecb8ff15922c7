"""Open a dataset in any of the supported formats."""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from sourceward._util.errors import InputError, unknown_name
from sourceward.data.arrays import read_features
from sourceward.data.dataset import DomainDataset
from sourceward.data.hub import read_hub
from sourceward.data.known import DATASETS
from sourceward.data.table import read_table
from sourceward.data.tree import read_domain_folders

READERS: dict[str, Callable[..., DomainDataset]] = {
    ".tar": read_domain_folders,
    ".csv": read_table,
    ".tsv": read_table,
    ".parquet": read_table,
    ".npz": read_features,
    ".safetensors": read_features,
}
ACCEPTED = (
    "a folder <domain>/<class>/<file>, a .tar of one, a .csv, .tsv or .parquet table, an .npz or "
    ".safetensors file of features, hf:NAME, or name:/path of a known dataset"
)


def open_dataset(spec: str | Path | DomainDataset, /, **options: Any) -> DomainDataset:
    """Open a dataset; `options` are passed to its reader.

    `spec` is a folder <domain>/<class>/<file>, a .tar of one, a table (.csv, .tsv, .parquet), features (.npz,
    .safetensors), `hf:NAME_OR_PATH`, or `name:/path` of a known dataset such as `pacs:/data/PACS`.
    """
    if isinstance(spec, DomainDataset):
        return spec
    reader, path, label = _find_reader(str(spec))
    options = _checked(reader, options, label)
    try:
        dataset = reader(path, **options)
    except OSError as error:
        raise InputError(f"'{error.filename or path}' cannot be read: {error.strerror or error}.") from None
    unknown = next((t for t in dataset.targets if t not in dataset.domain_names), None)
    if unknown is not None:
        raise unknown_name("domain", unknown, dataset.domain_names)
    return dataset


def _find_reader(spec: str) -> tuple[Callable[..., DomainDataset], str, str]:
    """Return the reader, its argument and its name in error messages."""
    name, colon, rest = spec.partition(":")
    if colon and len(name) > 1 and re.fullmatch(r"[\w-]+", name) and not Path(spec).exists():
        if name == "hf":
            return read_hub, rest, "hf:"
        entry = DATASETS[name.lower().replace("-", "_")]
        path = Path(rest).expanduser()
        if not rest or not path.exists():
            raise InputError(
                f"No such file or folder: '{rest}'. Expected the path of {entry.name}, laid out like "
                f"{entry.layout}"
            )
        return entry.read, str(path), entry.name
    path = Path(spec).expanduser()
    if not path.exists():
        known = spec.lower().replace("-", "_")
        hint = f" For the known dataset write {known}:/path." if known in DATASETS else ""
        raise InputError(f"No such file or folder: '{spec}'. Expected {ACCEPTED}.{hint}")
    if path.is_dir():
        return read_domain_folders, str(path), "a folder"
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"'{spec}' has an unknown format. Expected {ACCEPTED}.")
    return reader, str(path), f"a {path.suffix.lower()} file"


def _checked(reader: Callable[..., DomainDataset], options: dict[str, Any], label: str) -> dict[str, Any]:
    """Check the names and types of options against the signature of the reader."""
    parameters = inspect.signature(reader).parameters.values()
    declared = {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}
    for name in options:
        if name not in declared:
            takes = f"it takes {', '.join(declared)}" if declared else "it takes none"
            raise InputError(f"Unknown option {name!r} for {label}: {takes}.")
    return {name: _typed(name, value, declared[name]) for name, value in options.items()}


_KINDS: dict[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    Literal: (str, "text"),
    Path: (Path, "text"),
    NoneType: (NoneType, "none"),
    Sequence: (Iterable, "a list [...]"),
    tuple: (Iterable, "a list [...]"),
}
"""Annotation in a reader's signature: the type a value must have, and its name in error messages."""


def _typed(name: str, value: Any, declared: Any) -> Any:
    kinds = get_args(declared) if isinstance(declared, UnionType) else (declared,)
    if str in kinds and isinstance(value, Real) and not isinstance(value, bool):
        return str(value)  # a column may be called 2019
    if any(_is(value, kind) for kind in kinds):
        return value
    words = dict.fromkeys(_KINDS[get_origin(kind) or kind][1] for kind in kinds)
    raise InputError(f"Expected option `{name}` to be {' or '.join(words)}, but got {value!r}.")


def _is(value: Any, kind: Any) -> bool:
    """Return whether `value` matches an annotation; annotations not in `_KINDS` match everything."""
    plain = get_origin(kind) or kind
    if plain not in _KINDS:
        return True
    if isinstance(value, bool) or not isinstance(value, _KINDS[plain][0]):
        return False
    if plain not in (Sequence, tuple):
        return True
    return not isinstance(value, str) and all(_is(item, get_args(kind)[0]) for item in value)
