"""The datasets of the paper and of the field, by the layout their authors distribute."""

from sourceward.data.known import (  # noqa: F401 (they register)
    corrupted,
    corrupted_idx,
    domainnet,
    image_folders,
    pheme,
    rotated,
)
from sourceward.data.known.entry import DATASETS, KnownDataset, list_datasets

__all__ = ["DATASETS", "KnownDataset", "list_datasets"]
