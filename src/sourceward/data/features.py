"""Features of a frozen backbone, of samples and of changed copies: computed once, cached on disk."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward._util.progress import progress_bar
from sourceward._util.storage import load_tensors, save_tensors, tensor_hash
from sourceward.data import DomainDataset, cache_folder
from sourceward.data.cache import cache_limit, trim_cache
from sourceward.data.corrupting import corrupt_cycling, corruption_generator
from sourceward.data.corruptions import EXTRA_CORRUPTIONS
from sourceward.data.image_ops import mix_amplitude_toward
from sourceward.data.loading import ChangedSamples, Samples, check_kind, encode, prepare_samples
from sourceward.data.transforms import AMPLITUDE_SHARE, as_bytes
from sourceward.nn.backbones import Backbone


def extract_features(
    dataset: DomainDataset, backbone: Backbone, device: torch.device, show: bool | None = None
) -> DomainDataset:
    """The dataset with features in place of its items, computed once and kept on disk.

    What was computed of a domain when a process was killed is found again, `CHUNK` samples at a time.
    """
    check_kind(dataset.kind, backbone)
    identity = _identity(backbone, device)
    features = np.empty((len(dataset), backbone.dim), dtype=np.float32)
    for code, name in enumerate(dataset.domain_names):
        rows = np.flatnonzero(dataset.domains == code)
        for some, title in chunks(rows, f"features of {name}"):
            part = dataset.select(some)
            features[some] = _domain_features(part, title, backbone, device, identity, show)
    return replace(dataset, kind="features", items=features)


CHUNK = 2048
"""Samples whose features are one file of the cache: a multiple of the rows of a pass, so that the batches of
a GPU are those of the whole domain."""


def chunks(rows: np.ndarray, title: str) -> Iterator[tuple[np.ndarray, str]]:
    """Yield at most `CHUNK` rows at a time, with a title.

    >>> [(len(some), title) for some, title in chunks(np.arange(3000), "features")]
    [(2048, 'features, part 1 of 2'), (952, 'features, part 2 of 2')]
    """
    count = -(-len(rows) // CHUNK)
    for number in range(count):
        some = rows[number * CHUNK : (number + 1) * CHUNK]
        yield some, title if count == 1 else f"{title}, part {number + 1} of {count}"


@dataclass(frozen=True)
class Corrupted(ChangedSamples):
    """Samples under one corruption, severities in turn."""

    name: str
    offset: int
    seed: int

    def stored(self, rows: slice) -> Iterator[Tensor]:
        first, generator = self.offset, None
        for images in self.samples.stored(rows):
            generator = generator or corruption_generator(images.device, self.name, self.seed)
            yield corrupt_cycling(images, self.name, first, generator)
            first += len(images)


def corrupted_features(
    network: Callable[[Any], Tensor], samples: Samples, rows: slice, seed: int = 0
) -> Tensor:
    """Features of `rows` under each of the extra corruptions, one corruption after the other."""
    copies = [Corrupted(samples, name, number, seed) for number, name in enumerate(EXTRA_CORRUPTIONS)]
    return torch.cat([encode(network, copy, rows) for copy in copies])


@dataclass(frozen=True)
class AmplitudeMixed(ChangedSamples):
    """Images whose Fourier amplitudes are mixed with the mean amplitudes of a source."""

    amplitudes: Tensor
    """(sources, 3, height, width // 2 + 1)."""
    toward: Tensor
    """The source of each row."""

    def stored(self, rows: slice) -> Iterator[Tensor]:
        first = rows.start
        for images in self.samples.stored(rows):
            own = self.amplitudes[self.toward[first : first + len(images)]]
            there = mix_amplitude_toward(images.double() / 255, own, AMPLITUDE_SHARE)
            yield as_bytes(there)
            first += len(images)


def extract_amplitude_mixed(
    dataset: DomainDataset,
    backbone: Backbone,
    amplitudes: Tensor,
    toward: np.ndarray,
    device: torch.device,
    show: bool | None = None,
) -> np.ndarray:
    """Features of every image with amplitudes mixed toward source `toward`; kept on disk in chunks."""
    backbone = backbone.to(device).eval()
    own, found = _identity(backbone, device), []

    def compute(part: DomainDataset, sources: Tensor, title: str) -> Tensor:
        samples = prepare_samples(part, backbone, device, show=show)
        copies = AmplitudeMixed(samples, amplitudes, sources.to(device))
        with progress_bar(len(part), title, show) as advance:
            return encode(backbone, copies, slice(0, len(part)), advance)

    for rows, title in chunks(np.arange(len(dataset)), "features in other amplitudes"):
        part, sources = dataset.select(rows), torch.from_numpy(toward[rows])
        identity = f"{part.content_hash()}{own}{tensor_hash({'amplitudes': amplitudes, 'toward': sources})}"
        found.append(_kept(identity, backbone, partial(compute, part, sources, title)))
    return np.concatenate(found) if found else np.zeros((0, backbone.dim), dtype=np.float32)


def extract_corrupted(
    dataset: DomainDataset, backbone: Backbone, device: torch.device, seed: int = 0, show: bool | None = None
) -> np.ndarray:
    """`corrupted_features` of a whole dataset by a frozen backbone; kept on disk."""
    backbone = backbone.to(device).eval()

    def compute() -> Tensor:
        samples = prepare_samples(dataset, backbone, device, show=show)
        return corrupted_features(backbone, samples, slice(0, len(dataset)), seed)

    return _kept(f"{dataset.content_hash()}{_identity(backbone, device)}{seed}corrupted", backbone, compute)


def _domain_features(
    part: DomainDataset,
    title: str,
    backbone: Backbone,
    device: torch.device,
    identity: str,
    show: bool | None,
) -> np.ndarray:
    backbone = backbone.to(device).eval()

    def compute() -> Tensor:
        samples = prepare_samples(part, backbone, device, show=show)
        with progress_bar(len(part), title, show) as advance:
            return encode(backbone, samples, slice(0, len(part)), advance)

    return _kept(f"{part.content_hash()}{identity}", backbone, compute)


def _file(identity: str) -> Path:
    key = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    return cache_folder() / "features" / f"{key}.safetensors"


def has_features(dataset: DomainDataset, backbone: Backbone, device: torch.device) -> bool:
    """Whether `extract_features` has nothing left to compute."""
    identity = _identity(backbone, device)
    return all(
        _file(f"{dataset.select(some).content_hash()}{identity}").is_file()
        for code in range(len(dataset.domain_names))
        for some, _ in chunks(np.flatnonzero(dataset.domains == code), "")
    )


def _kept(identity: str, backbone: Backbone, compute: Callable[[], Tensor]) -> np.ndarray:
    """Features from the disk, or computed and written there."""
    file = _file(identity)
    with _alone(file):
        if file.is_file():
            try:
                return load_tensors(file)[0]["features"].numpy()
            except (InputError, KeyError, TypeError):  # torn: computed again
                file.unlink()
        features = compute().cpu()
        with suppress(OSError, InputError):  # a cache that cannot be written costs time, nothing else
            save_tensors(file, {"features": features}, {"backbone": backbone.spec})
            trim_cache(max(cache_limit(), file.stat().st_size))
    return features.numpy()


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """What one process computes, another that wants the same waits for."""
    lock = FileLock(file.with_suffix(".lock"))
    with suppress(OSError, NotImplementedError):  # nor does a cache that cannot be locked
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


KERNELS = 2
"""Raise it when the bits of features change, so that no older ones are read from the cache."""


def _identity(backbone: Backbone, device: torch.device) -> str:
    """Of everything the features depend on but the inputs."""
    digest = hashlib.blake2b(json.dumps(backbone.config(), sort_keys=True).encode(), digest_size=16)
    digest.update(f"{device.type}{KERNELS}".encode())
    digest.update(tensor_hash(backbone.state_dict()).encode())
    return digest.hexdigest()
