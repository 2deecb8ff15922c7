"""Labelled samples of several domains: readers, decoding, the diagnosis of a dataset.

Importing this package loads no torch. Modules that work on tensors (augment, image_ops, corruptions, stream,
loading, features, transforms) are imported by their own names.
"""

from sourceward.data.cache import cache_folder
from sourceward.data.corrupting import corrupted_domains
from sourceward.data.dataset import DomainDataset, Problem
from sourceward.data.decode import Geometry, decode_image, decode_images
from sourceward.data.diagnosis import Diagnosis, Refusal, doctor
from sourceward.data.known import DATASETS, KnownDataset, list_datasets
from sourceward.data.open import open_dataset

__all__ = [
    "DATASETS",
    "Diagnosis",
    "DomainDataset",
    "Geometry",
    "KnownDataset",
    "Problem",
    "Refusal",
    "cache_folder",
    "corrupted_domains",
    "decode_image",
    "decode_images",
    "doctor",
    "list_datasets",
    "open_dataset",
]
