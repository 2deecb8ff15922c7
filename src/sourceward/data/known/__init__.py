"""Published datasets, read in the layout in which their authors distribute them."""

from sourceward.data.known import corrupted, image_folders, mnist, pheme  # they register
from sourceward.data.known.entry import DATASETS, KnownDataset, list_datasets
