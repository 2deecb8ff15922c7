"""The datasets of the paper and of the field, by the layout their authors distribute."""

from sourceward.data.known import corrupted, domainnet, image_folders, pheme, rotated  # noqa: F401 (they register)
from sourceward.data.known.entry import DATASETS, KnownDataset, list_datasets

__all__ = ["DATASETS", "KnownDataset", "list_datasets"]
