"""Published datasets, read in the layout in which their authors distribute them."""

from sourceward.data.known import (  # noqa: F401 (they register)
    corrupted,
    image_folders,
    mnist,
    pheme,
)
from sourceward.data.known.entry import DATASETS, KnownDataset, list_datasets

__all__ = ["DATASETS", "KnownDataset", "list_datasets"]
