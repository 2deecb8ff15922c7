"""The registry of published datasets: description, download location, layout on disk, reader."""

from collections.abc import Callable
from dataclasses import dataclass

from sourceward._util.registry import Registry
from sourceward.data.dataset import DomainDataset

Reader = Callable[..., DomainDataset]


@dataclass(frozen=True)
class KnownDataset:
    """A dataset that `open_dataset("name:/path")` reads."""

    name: str
    about: str
    where: str
    layout: str
    read: Reader


DATASETS: Registry[KnownDataset] = Registry("dataset")


def known_dataset(name: str, *, about: str, where: str, layout: str) -> Callable[[Reader], Reader]:
    """Register `read(path, **options)` under `name`."""

    def add(read: Reader) -> Reader:
        DATASETS.register(name)(KnownDataset(name, about, where, layout, read))
        return read

    return add


def list_datasets() -> list[KnownDataset]:
    """Return every registered dataset."""
    return [DATASETS[name] for name in DATASETS]
