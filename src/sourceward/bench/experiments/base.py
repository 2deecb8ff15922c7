"""What the paper's experiments share: the checkpoints they evaluate, the tables and figures they return."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.registry import Registry
from sourceward._util.tables import Table
from sourceward.bench.protocol.checkpoint import Checkpoint, Part
from sourceward.bench.protocol.plan import leave_out, name_of
from sourceward.bench.protocol.provenance import code_version
from sourceward.bench.protocol.runs import key_of
from sourceward.bench.protocol.training import Training, train
from sourceward.bench.published import Published, dataset_with, published, targets_of
from sourceward.data import DomainDataset, open_dataset

OFF, ADAPTED = "no adaptation", "adapted"


@dataclass(frozen=True)
class Drawing:
    """A figure as plain data. Each panel names its `plot` and the arguments of it; the caption says what to
    look at."""

    name: str
    caption: str
    size: tuple[float, float]
    panels: Sequence[dict[str, Any]]


@dataclass
class Outcome:
    """What an experiment shows."""

    tables: list[Table]
    drawings: list[Drawing] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Case(NamedTuple):
    """One checkpoint and one target that it never saw."""

    name: str
    target: str
    seed: int
    checkpoint: Checkpoint
    part: Part

    @property
    def where(self) -> str:
        """DATA/TARGET."""
        return f"{self.name}/{self.target}"

    def right(self, probability: Any) -> np.ndarray:
        """Return whether each sample is classified correctly by probabilities (n, classes)."""
        return self.checkpoint.right(self.part, probability)

    def right_after(self, **options: Any) -> np.ndarray:
        """Return whether each sample is classified correctly after adaptation with these settings."""
        return self.right(self.checkpoint.adapt(self.part, **options).probabilities)


@dataclass(frozen=True)
class Context:
    """What an experiment works on.

    Args:
        data: anything `open_dataset` takes.
        out: folder of results and models.
        seeds: one training each.
        targets: domains to leave out; all when empty.
        training: how.
        num_steps: of adaptation, where the experiment does not vary them.
        small: fewer points, for a first look and for tests.
        models: folder of trained models, which experiments may share; `models` below `out` when None.
        loaded: models with the features computed so far, which experiments of one process may share.
        options: of the data's reader.
    """

    data: tuple[str | DomainDataset, ...]
    out: Path
    seeds: tuple[int, ...] = (0,)
    targets: tuple[str, ...] = ()
    training: Training = field(default_factory=Training)
    num_steps: int = 20
    small: bool = False
    models: Path | None = None
    loaded: dict[Path, Checkpoint] = field(default_factory=dict)
    options: tuple[tuple[str, Any], ...] = ()

    def datasets(self) -> Iterator[tuple[str, DomainDataset]]:
        """Yield the name and the content of each dataset."""
        for data in self.data:
            dataset = open_dataset(data, **dict(self.options))
            self.training.fit_settings(dataset.kind)
            yield name_of(data, dataset), dataset

    def with_settings(self, **settings: Any) -> Training:
        """Return the training with some settings changed; experiments name their steps."""
        return replace(self.training, settings={**self.training.settings, **settings}, tune=False)

    def cases(self, **settings: Any) -> Iterator[Case]:
        """Yield every (data, target, seed), trained with some settings changed."""
        training = self.with_settings(**settings)
        for name, dataset in self.datasets():
            for left_out, targets in leave_out(dataset, self.targets).items():
                for seed in self.seeds:
                    checkpoint = self.train(dataset, training, left_out, seed, name)
                    for target in targets:
                        yield Case(name, target, seed, checkpoint, checkpoint.part(target))

    def first_seed(self) -> Iterator[Case]:
        """Yield every (data, target) of the first seed."""
        return (case for case in self.cases() if case.seed == self.seeds[0])

    def train(
        self, dataset: DomainDataset, training: Training, left_out: tuple[str, ...], seed: int, name: str
    ) -> Checkpoint:
        """Train, or load what was trained before."""
        key = key_of([code_version(), dataset.fingerprint(), training.identity(), left_out, seed])[:10]
        folder = (self.models or self.out / "models") / f"{name}-{'-'.join(left_out)[:60]}-{seed}-{key}"
        for known, other in self.loaded.items():
            if known != folder:
                other.drop_inputs()
        if folder not in self.loaded:
            self.loaded[folder] = train(dataset, training, left_out, seed, folder)
        return self.loaded[folder]

    def published(self, table: str, dataset: DomainDataset | None = None) -> list[Published]:
        """Return published rows for this data; none where the paper has other data."""
        known = known_as(dataset if dataset is not None else next(iter(self.datasets()))[1])
        return published(table, dataset=known) if known else []


def known_as(dataset: DomainDataset) -> str:
    """Return the paper's name for data with these domains, or ''."""
    names = set(dataset.domain_names)
    found = dataset_with(names)
    if found and names == set(targets_of(found)):
        return found
    if names >= {"gaussian_noise", "jpeg_compression"}:
        return "cifar10_c" if len(dataset.classes) == 10 else "imagenet_c"
    return ""


def check_targets(context: Context) -> None:
    """Refuse targets that no data holds out."""
    found = [leave_out(dataset, context.targets) for _, dataset in context.datasets()]
    if not any(found):
        raise InputError(f"No data holds out any of {list(context.targets)}. Leave --targets out to run all.")


def wanted_targets(wanted: tuple[str, ...], possible: Sequence[str]) -> list[str]:
    """Return the wanted ones of the possible targets; all when none are named."""
    for name in wanted:
        if name not in possible:
            raise unknown_name("target", name, possible)
    return [name for name in possible if not wanted or name in wanted]


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Args:
        name: for the command line.
        about: one line.
        needs: which data it takes.
        run: does it.
        check: refuses unsuitable data before anything is written.
    """

    name: str
    about: str
    needs: str
    run: Callable[[Context], Outcome]
    check: Callable[[Context], None] = check_targets


EXPERIMENTS: Registry[Experiment] = Registry("experiment")


def experiment(
    name: str,
    about: str,
    needs: str = "features, images or texts",
    check: Callable[[Context], None] = check_targets,
) -> Callable:
    """Register `run(context)` under `name`."""

    def add(run: Callable[[Context], Outcome]) -> Callable[[Context], Outcome]:
        EXPERIMENTS.register(name)(Experiment(name, about, needs, run, check))
        return run

    return add


def list_experiments() -> list[Experiment]:
    """Return all experiments."""
    return [EXPERIMENTS[name] for name in EXPERIMENTS]
