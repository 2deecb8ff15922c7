"""Open a dataset in any supported format; `hf:NAME` reads the Hugging Face Hub, `hf:/path` the disk."""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.reading import read_regular
from sourceward.data.arrays import read_features
from sourceward.data.dataset import DomainDataset, build
from sourceward.data.known import DATASETS
from sourceward.data.table import (
    SPLITS,
    SYNONYMS,
    complete_rows,
    find_column,
    from_columns,
    locator,
    need_column,
    read_table,
)
from sourceward.data.tree import read_domain_folders


@dataclass(frozen=True, slots=True)
class RowImage:
    """The encoded image in one row of an Arrow table."""

    table: Any
    column: str
    row: int

    def read(self) -> bytes:
        cell = self.table[self.row][self.column]
        return cell["bytes"] if cell["bytes"] is not None else read_regular(cell["path"], "image_bytes")

    def signature(self) -> str:
        return f"{self.table._fingerprint}:{self.row}"


def read_hub(
    name: str,
    *,
    config: str | None = None,
    domain: str | None = None,
    label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    id: str | None = None,
    split: str | None = None,
) -> DomainDataset:
    """Read all splits of a dataset with a domain, a label and an image or text column.

    Splits named train and validation are kept as the split; other splits are ignored. Options name columns.
    """
    table, split_names = _load(name, config)
    columns = table.column_names
    domain = need_column(columns, "domain", domain, name)
    label = need_column(columns, "label", label, name)
    given = split_names if split is None and set(split_names) == {"train", "val"} else None
    image_column = find_column(columns, "path", image, name) if image else None
    if not image and not text:
        image_column = _image_column(table)
    if image_column is None:
        chosen = {"domain": domain, "label": label, "text": text, "path": None, "id": id, "split": split}
        data = {column: table[column][:] for column in columns}
        data |= {column: _texts(table, column) for column in (domain, label)}
        if given is not None:
            data["split"], chosen["split"] = given, "split"
        return from_columns(data, chosen, name=f"hf:{name}", locate=locator(".", None))
    return _images(table, name, image_column, domain, label, given)


def _images(
    table: Any, name: str, column: str, domain: str, label: str, split: Sequence[str] | None
) -> DomainDataset:
    from datasets import Image

    if not isinstance(table.features[column], Image):
        raise InputError(
            f"Column {column!r} of 'hf:{name}' holds no images. Choose another: --option image=COLUMN."
        )
    domains, labels = _texts(table, domain), _texts(table, label)
    rows, problems = complete_rows({"domain": domains, "label": labels})
    encoded = table.cast_column(column, Image(decode=False))
    names = getattr(table.features[label], "names", None)
    return build(
        "image",
        tuple(RowImage(encoded, column, row) for row in rows),
        [labels[row] for row in rows],
        [domains[row] for row in rows],
        [f"row{row:07d}" for row in rows],
        classes=names,
        split=None if split is None else [split[row] for row in rows],
        problems=problems,
        name=f"hf:{name}",
    )


def _image_column(table: Any) -> str | None:
    from datasets import Image

    found = [column for column, kind in table.features.items() if isinstance(kind, Image)]
    usual = [column for column in found if column.lower() in SYNONYMS["path"]]
    return (usual or found or [None])[0]


def _texts(table: Any, column: str) -> list[str]:
    """Return a column as text, with class codes replaced by their names."""
    names = getattr(table.features[column], "names", None)
    cells = table[column][:]
    return [("" if c is None else names[c] if names and isinstance(c, int) else str(c)) for c in cells]


def _load(name: str, config: str | None) -> tuple[Any, list[str]]:
    """Return the table, and train, val or "" for each row."""
    try:
        import datasets
    except ImportError:
        raise InputError("Reading `hf:` datasets needs `pip install sourceward[data]`.") from None
    try:
        saved = Path(name).is_dir() and any(
            (Path(name) / file).exists() for file in ("state.json", "dataset_dict.json")
        )
        loaded = datasets.load_from_disk(name) if saved else datasets.load_dataset(name, config)
    except Exception as error:  # network, cache, parsing: dozens of types
        reason = str(error).strip().splitlines()
        raise InputError(
            f"'hf:{name}' cannot be loaded: {reason[0] if reason else type(error).__name__}. Check the name "
            "and the network, or pass the path of a dataset saved with save_to_disk."
        ) from None
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded, [""] * len(loaded)
    splits = [SPLITS.get(split.lower(), "") for split, part in loaded.items() for _ in range(len(part))]
    return datasets.concatenate_datasets(list(loaded.values())), splits


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
    if colon and len(name) > 1 and re.fullmatch(r"[\w-]+", name) and not os.path.exists(spec):
        if name == "hf":
            return read_hub, rest, "hf:"
        entry = DATASETS[name.lower().replace("-", "_")]
        path = Path(os.path.expanduser(rest))
        if not rest or not os.path.exists(path):
            raise InputError(
                f"No such file or folder: '{rest}'. Expected the path of {entry.name}, laid out like "
                f"{entry.layout}"
            )
        return entry.read, str(path), entry.name
    path = Path(os.path.expanduser(spec))
    if not os.path.exists(path):
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
