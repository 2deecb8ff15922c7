"""What the paper's experiments share: the checkpoints they ask, the tables and figures they answer with."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.registry import Registry
from sourceward.bench.cells import key_of
from sourceward.bench.checkpoints import Checkpoint, Part
from sourceward.bench.code import code_version
from sourceward.bench.protocol import leave_out, name_of
from sourceward.bench.quoted import OFFICE_HOME, PACS, PHEME, Quoted, quoted
from sourceward.bench.training import Training, train
from sourceward.data import DomainDataset, open_dataset
from sourceward.report.page import Table


@dataclass(frozen=True)
class Drawing:
    """A figure: `draw` gets a matplotlib figure; the caption says what to see."""

    name: str
    caption: str
    size: tuple[float, float]
    draw: Callable[[Any], None]


@dataclass
class Outcome:
    """What an experiment shows."""

    tables: list[Table]
    drawings: list[Drawing] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Asked(NamedTuple):
    """One checkpoint and one target that it never saw."""

    name: str
    target: str
    seed: int
    checkpoint: Checkpoint
    part: Part

    @property
    def place(self) -> str:
        return f"{self.name}/{self.target}"


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
    """

    data: tuple[str | DomainDataset, ...]
    out: Path
    seeds: tuple[int, ...] = (0,)
    targets: tuple[str, ...] = ()
    training: Training = field(default_factory=Training)
    num_steps: int = 20
    small: bool = False

    def datasets(self) -> Iterator[tuple[str, DomainDataset]]:
        for data in self.data:
            dataset = open_dataset(data)
            self.training.check(dataset.kind)
            yield name_of(data, dataset), dataset

    def checkpoints(self, **settings: Any) -> Iterator[Asked]:
        """Every (data, target, seed), with some settings of the training changed."""
        training = replace(self.training, settings={**self.training.settings, **settings})
        for name, dataset in self.datasets():
            for left_out, targets in leave_out(dataset, self.targets).items():
                for seed in self.seeds:
                    checkpoint = self.train(dataset, training, left_out, seed, name)
                    for target in targets:
                        yield Asked(name, target, seed, checkpoint, checkpoint.part(target))

    def train(
        self, dataset: DomainDataset, training: Training, left_out: tuple[str, ...], seed: int, name: str
    ) -> Checkpoint:
        """One training, or what it left behind the last time."""
        code = code_version(dataset.kind != "features")
        identity = [code, dataset.fingerprint(), training.identity(), left_out, seed]
        folder = (
            self.out / "runs" / f"{name}-{'-'.join(left_out)[:60]}-{seed}-{key_of({'of': identity})[:10]}"
        )
        return train(dataset, training, left_out, seed, folder)

    def published(self, table: str, dataset: DomainDataset | None = None) -> list[Quoted]:
        """Published rows for this data; none where the paper has other data."""
        first = dataset if dataset is not None else next(iter(self.datasets()))[1]
        return quoted(table, dataset=known_as(first)) if known_as(first) else []


def known_as(dataset: DomainDataset) -> str:
    """The paper's name for data with these domains, or ''."""
    names = set(dataset.domain_names)
    for name, domains in {"pacs": PACS, "office_home": OFFICE_HOME, "pheme": PHEME}.items():
        if names == set(domains):
            return name
    if names >= {"gaussian_noise", "jpeg_compression"}:
        return "cifar10_c" if len(dataset.classes) == 10 else "imagenet_c"
    return ""


def check_targets(context: Context) -> None:
    """Refuse targets that no data holds out."""
    found = [leave_out(dataset, context.targets) for _, dataset in context.datasets()]
    if not any(found):
        raise InputError(f"No data holds out any of {list(context.targets)}. Leave --targets out to run all.")


def wanted_targets(wanted: tuple[str, ...], possible: Sequence[str]) -> list[str]:
    """Of the possible targets those that were asked for; all when none were."""
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
        needs: what data can serve it.
        run: does it.
        check: refuses what cannot serve, before anything is written.
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
    return [EXPERIMENTS[name] for name in EXPERIMENTS]
