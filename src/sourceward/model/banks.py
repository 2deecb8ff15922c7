"""Feature files: the features of every domain under a model's backbone, in one .npz for `fit` and `bench`."""

from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.storage import atomic_file, check_target
from sourceward.data import DomainDataset, open_dataset
from sourceward.model.evaluation import dataset_features
from sourceward.model.model import Model


def save_features(
    model: Model,
    data: str | Path | DomainDataset,
    path: str | Path,
    *,
    fraction: float = 0.1,
    progress: bool | None = None,
) -> None:
    """Write the features of all domains, before the network rescales them.

    Domains that the model was not trained on are marked as held out. `data.arrays` documents the format.

    Args:
        model: its backbone and projection compute the features.
        data: anything `open_dataset` takes.
        path: an .npz file.
        fraction: validation share if the data has no official split; use that of the fit.
        progress: show bars; None shows them if standard error is a terminal.
    """
    check_bank(path)
    dataset = open_dataset(data)
    feature = model.network.raw(dataset_features(model, dataset, progress)).cpu().numpy()
    largest = np.abs(feature).max()
    validates = np.zeros(len(dataset), dtype=bool)
    validates[dataset.train_val_indices(fraction)[1]] = True
    held = [name for name in dataset.domain_names if name not in model.sources]
    arrays: dict[str, Any] = {
        "features": feature.astype(np.float16 if largest < np.finfo(np.float16).max else np.float32),
        "label": dataset.labels.astype(np.uint16),
        "domain": dataset.domains.astype(np.uint16),
        "is_validation": validates,
        "domains": np.array(dataset.domain_names),
        "classes": np.array(dataset.classes),
    }
    if held:
        arrays["held_out"] = np.array(held[0] if len(held) == 1 else held)
    with atomic_file(path) as stream:
        np.savez(stream, **arrays)


def check_bank(path: str | Path) -> None:
    """Refuse a path that does not end in .npz, or cannot be written."""
    if Path(path).suffix.lower() != ".npz":
        raise InputError(f"Expected a file that ends in .npz for features, but got '{path}'.")
    check_target(path)
