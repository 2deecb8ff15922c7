"""Everything that turns what a user has into labelled samples of several domains."""

from sourceward.data.cache import cache_folder
from sourceward.data.corrupting import corrupted_domains
from sourceward.data.dataset import DomainDataset, Problem
from sourceward.data.decode import Decoded, decode_image, decode_images, geometry, load_images
from sourceward.data.diagnosis import Diagnosis, Refusal, doctor
from sourceward.data.known import DATASETS, KnownDataset, list_datasets
from sourceward.data.open import open_dataset
from sourceward.data.stream import Batch, DomainBatches, ImageStream, fits_in_memory, in_order, stream_batches

__all__ = [
    "DATASETS",
    "Batch",
    "Decoded",
    "Diagnosis",
    "DomainBatches",
    "DomainDataset",
    "ImageStream",
    "KnownDataset",
    "Problem",
    "Refusal",
    "cache_folder",
    "corrupted_domains",
    "decode_image",
    "decode_images",
    "doctor",
    "fits_in_memory",
    "geometry",
    "in_order",
    "list_datasets",
    "load_images",
    "open_dataset",
    "stream_batches",
]
