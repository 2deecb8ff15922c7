"""Features of a frozen backbone, of samples and of changed copies: computed once, cached on disk.

Backbones side by side have a file each, so that a combination of them finds what another one computed.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from sourceward.data.transforms import AMPLITUDE_SHARE, as_bytes, resize
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.nn.backbones.several import only, scale_and_join, split

Encoder = Callable[[Any], Tensor]


def extract_features(
    dataset: DomainDataset, backbone: Backbone, device: torch.device, show: bool | None = None
) -> DomainDataset:
    """The dataset with features in place of its items, computed once and kept on disk.

    What was computed of a domain when a process was killed is found again, `CHUNK` samples at a time.
    """
    check_kind(dataset.kind, backbone)
    identities = _identities(backbone, device)
    features = np.empty((len(dataset), backbone.dim), dtype=np.float32)
    for code, name in enumerate(dataset.domain_names):
        rows = np.flatnonzero(dataset.domains == code)
        for some, title in chunks(rows, f"features of {name}"):
            part = dataset.select(some)
            features[some] = _domain_features(part, title, backbone, device, identities, show)
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
    """Images whose Fourier amplitudes are mixed with the mean amplitudes of a source, resized."""

    amplitudes: Tensor
    """(sources, 3, height, width // 2 + 1)."""
    toward: Tensor
    """The source of each row."""
    size: tuple[int, int]
    """Height and width of the result."""

    def stored(self, rows: slice) -> Iterator[Tensor]:
        first = rows.start
        for images in self.samples.stored(rows):
            own = self.amplitudes[self.toward[first : first + len(images)]]
            there = mix_amplitude_toward(images.double() / 255, own, AMPLITUDE_SHARE)
            yield as_bytes(resize(there, self.size))
            first += len(images)


def extract_amplitude_mixed(
    dataset: DomainDataset,
    backbone: Backbone,
    amplitudes: Tensor,
    toward: np.ndarray,
    device: torch.device,
    show: bool | None = None,
    size: tuple[int, int] | None = None,
) -> np.ndarray:
    """Features of every image with amplitudes mixed toward source `toward`, of the backbone's own or another
    size; kept on disk in chunks."""
    backbone = backbone.to(device).eval()
    assert isinstance(backbone.preprocessing, ImagePreprocessing)
    size = size or backbone.preprocessing.size
    own, found = _identities(backbone, device), []

    def compute(part: DomainDataset, sources: Tensor, title: str, network: Encoder) -> Tensor:
        samples = prepare_samples(part, backbone, device, show=show)
        copies = AmplitudeMixed(samples, amplitudes, sources.to(device), size)
        with progress_bar(len(part), title, show) as advance:
            return encode(network, copies, slice(0, len(part)), advance)

    for rows, title in chunks(np.arange(len(dataset)), "features of Fourier copies"):
        part, sources = dataset.select(rows), torch.from_numpy(toward[rows])
        content, how = part.content_hash(), tensor_hash({"amplitudes": amplitudes, "toward": sources})
        keys = [f"{content}{identity}{how}{size}" for identity in own]
        found.append(_kept(keys, backbone, partial(compute, part, sources, title)))
    return np.concatenate(found) if found else np.zeros((0, backbone.dim), dtype=np.float32)


def extract_corrupted(
    dataset: DomainDataset, backbone: Backbone, device: torch.device, seed: int = 0, show: bool | None = None
) -> np.ndarray:
    """`corrupted_features` of a whole dataset by a frozen backbone; kept on disk."""
    backbone = backbone.to(device).eval()

    def compute(network: Encoder) -> Tensor:
        samples = prepare_samples(dataset, backbone, device, show=show)
        return corrupted_features(network, samples, slice(0, len(dataset)), seed)

    own = _identities(backbone, device)
    return _kept([f"{dataset.content_hash()}{each}{seed}corrupted" for each in own], backbone, compute)


def _domain_features(
    part: DomainDataset,
    title: str,
    backbone: Backbone,
    device: torch.device,
    identities: Sequence[str],
    show: bool | None,
) -> np.ndarray:
    backbone = backbone.to(device).eval()

    def compute(network: Encoder) -> Tensor:
        samples = prepare_samples(part, backbone, device, show=show)
        with progress_bar(len(part), title, show) as advance:
            return encode(network, samples, slice(0, len(part)), advance)

    return _kept([f"{part.content_hash()}{own}" for own in identities], backbone, compute)


def _file(identity: str) -> Path:
    key = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    return cache_folder() / "features" / f"{key}.safetensors"


def has_features(dataset: DomainDataset, backbone: Backbone, device: torch.device) -> bool:
    """Whether `extract_features` has nothing left to compute."""
    identities = _identities(backbone, device)
    return all(
        _file(f"{content}{identity}").is_file()
        for code in range(len(dataset.domain_names))
        for some, _ in chunks(np.flatnonzero(dataset.domains == code), "")
        for content in [dataset.select(some).content_hash()]
        for identity in identities
    )


def _kept(keys: Sequence[str], backbone: Backbone, compute: Callable[[Encoder], Tensor]) -> np.ndarray:
    """Features from the disk, or computed and written there.

    Args:
        keys: one for each of the backbones side by side.
        backbone: whose features they are.
        compute: what an encoder makes of the samples.
    """
    each, files = split(backbone), [_file(key) for key in keys]
    single = each[0] is backbone
    with ExitStack() as stack:
        for file in sorted({*files}):  # in one order, so that no two processes wait for each other
            stack.enter_context(_alone(file))
        found = [_read(file) for file in files]
        missing = [place for place, feature in enumerate(found) if feature is None]
        if missing:
            new = compute(backbone if single else only(backbone, missing).joined).cpu()
            for place, part in zip(missing, new.split([each[place].dim for place in missing], dim=1)):
                found[place] = part.contiguous()
                _write(files[place], part.contiguous(), each[place].spec)
    features = [feature for feature in found if feature is not None]
    if single:
        return features[0].numpy()
    rows = zip(*features)  # each alone: the order of a sum may depend on the shape
    return torch.cat([scale_and_join([part[None] for part in row]) for row in rows]).numpy()


def _read(file: Path) -> Tensor | None:
    """Features of one file; None where there is none, or a torn one, which is deleted."""
    if not file.is_file():
        return None
    try:
        return load_tensors(file)[0]["features"]
    except (InputError, KeyError, TypeError):
        file.unlink()
        return None


def _write(file: Path, features: Tensor, spec: str) -> None:
    with suppress(OSError, InputError):  # a cache that cannot be written costs time, nothing else
        save_tensors(file, {"features": features}, {"backbone": spec})
        trim_cache(max(cache_limit(), file.stat().st_size))


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


KERNELS = 5
"""Raise it when the bits of features change, so that no older ones are read from the cache."""


def _identities(backbone: Backbone, device: torch.device) -> list[str]:
    """Of everything the features depend on but the inputs, for each of the backbones side by side."""
    return [_identity(part, device) for part in split(backbone)]


def _identity(backbone: Backbone, device: torch.device) -> str:
    """Of everything the features depend on but the inputs."""
    config = backbone.config()
    config["preprocessing"].pop("copy_scale", None)  # of what copies of the inputs look like
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
    digest.update(f"{device.type}{KERNELS}".encode())
    digest.update(tensor_hash(backbone.state_dict()).encode())
    return digest.hexdigest()
