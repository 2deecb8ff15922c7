"""Hugging Face datasets: `hf:NAME` from the Hub, `hf:/path` from disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError
from sourceward._util.reading import read_regular
from sourceward.data.dataset import DomainDataset, build
from sourceward.data.table import (
    SPLITS,
    SYNONYMS,
    complete_rows,
    find_column,
    from_columns,
    locator,
    need_column,
)


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
