"""The files of a fit.

RUN/run.json                 the configuration; a run of another one is refused
RUN/metrics.jsonl            losses and validation, a line each
RUN/checkpoint.safetensors   all that the rest of the training depends on, while it lasts
RUN/finetuned.safetensors    backbone and linear head, once fine-tuning is done
RUN/heads.safetensors        checkpoint of the training of heads and energies
RUN/members/                 fine-tunings whose weights are averaged, where `finetune.members` is above 1
RUN/crossfit/                fine-tunings without each source, for leave-one-domain-out validation
RUN/config.json, model.safetensors, README.md    the model, once finished
RUN/last.safetensors         the weights of the last iteration, where another was better
RUN/checkpoints/             the weights of every validation, where `keep_checkpoints` is set
"""

import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from sourceward._util.devices import Processes
from sourceward._util.errors import InputError
from sourceward._util.reading import read_regular
from sourceward._util.storage import append_text, check_target, read_metadata, write_whole
from sourceward._util.values import read_json

BESIDE = ("numpy", "torchvision", "timm", "transformers")
"""Packages that build backbones and arrays; not all need be here."""
RUN, CONFIG = "run.json", "config.json"
CHECKPOINT, LAST = "checkpoint.safetensors", "last.safetensors"
FINETUNED, HEADS = "finetuned.safetensors", "heads.safetensors"
CROSSFIT, MEMBERS, KEPT = "crossfit", "members", "checkpoints"
FINGERPRINT = "data.fingerprint"
"""Of files and labels. Its values mean nothing to a reader, so a difference is only named if no other is."""
CONTENT = "files or labels of the data have changed"


def check_run_folder(path: str | Path) -> None:
    """Refuse a folder that a run cannot be written to, before any work."""
    for place in (Path(path), *Path(path).parents):
        if place.is_file():
            raise InputError(f"'{place}' is a file. Name an empty or new folder for the run.")
    for name in (RUN, CONFIG):
        check_target(Path(path) / name)


class RunFolder:
    """The files of a run, and whose they are."""

    def __init__(self, path: Path, configuration: dict[str, Any]) -> None:
        self.path, self.configuration = path, json.loads(json.dumps(configuration))
        self.checkpoint, self.metrics = path / CHECKPOINT, path / "metrics.jsonl"
        self.finetuned, self.heads = path / FINETUNED, path / HEADS

    def open(self) -> bool:
        """Whether the run has finished; what lies here of another run is refused."""
        check_run_folder(self.path)
        file = self.path / RUN
        if not file.exists():
            others = [p.name for p in self.path.iterdir()] if self.path.is_dir() else []
            if others:
                raise InputError(
                    f"'{self.path}' holds other files ({', '.join(sorted(others)[:3])}). Name an empty or "
                    "new folder for the run."
                )
            return False
        finished = (self.path / CONFIG).exists()
        begun = (
            self.checkpoint,
            self.finetuned,
            self.heads,
            self.path / MEMBERS,
        )  # before that there is nothing to lose
        if finished or any(part.exists() for part in begun):
            self._compare(file)
        return finished

    def tidy(self) -> None:
        """Remove what a finished run no longer needs."""
        for name in (CROSSFIT, MEMBERS):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for file in (self.checkpoint, self.finetuned, self.heads):
            file.unlink(missing_ok=True)

    def start(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / RUN, json.dumps(self.configuration, indent=2) + "\n")

    def _compare(self, file: Path) -> None:
        try:
            before = read_json(file)
        except ValueError:
            raise InputError(f"'{file}' is damaged. Remove '{self.path}' to start anew.") from None
        changed = list(differences(before, self.configuration))
        if changed:
            changed = [line for line in changed if not line.startswith(FINGERPRINT)] or [CONTENT]
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise InputError(
                f"'{self.path}' holds a run of another configuration: {'; '.join(changed[:3])}{more}. "
                "Name another folder, or remove this one."
            )

    def streams(self) -> bool | None:
        """Whether images were decoded on the way when the checkpoint was written; None where there is none. A
        run that goes on draws its batches as it did, however much memory is free by now."""
        return read_metadata(self.checkpoint).get("streams")

    def record(self, line: dict[str, Any]) -> None:
        append_text(self.metrics, json.dumps(line) + "\n")

    def rewind(self, stage: str, iteration: int, kind: str | None = None) -> None:
        """Forget what the stage recorded after its checkpoint, all or one kind: it will be recorded again."""
        if os.path.lexists(self.metrics):
            lines = read_regular(self.metrics).decode(errors="replace").splitlines()
            kept = [line for line in lines if _kept(line, stage, iteration, kind)]
            write_whole(self.metrics, "".join(f"{line}\n" for line in kept))


def differences(before: Any, now: Any, path: str = "") -> Any:
    """What differs between two configurations, a phrase each.

    >>> list(differences({"a": {"b": 1}}, {"a": {"b": 2}}))
    ['a.b was 1, now 2']
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif before != now:
        yield f"{path} was {_short(before)}, now {_short(now)}"


def software() -> dict[str, str]:
    """Versions of what took part."""
    from sourceward import __version__

    own = {"sourceward": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return own | {name: metadata.version(name) for name in BESIDE if find_spec(name)}


def open_board(path: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("TensorBoard is not installed: pip install 'sourceward[tensorboard]'.") from None
    return SummaryWriter(str(path / "tensorboard"))


def _kept(text: str, stage: str, iteration: int, kind: str | None) -> bool:
    """Whether a line of metrics stays: not one of the stage after its checkpoint, nor one that was torn."""
    try:
        line = json.loads(text)
        asked = line.get("stage", stage) == stage and (kind is None or kind in line)
        return not (asked and line["iteration"] > iteration)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Context:
    """What every training of a fit shares."""

    folder: RunFolder
    settings: Any
    """`FitSettings`."""
    seed: int
    processes: Processes
    device: torch.device
    progress: bool | None = None
    board: Any = None
    """TensorBoard's writer."""
    started: float = field(default_factory=time.monotonic)
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of the fit, for `fit --profile`."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to a part."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.parts[name] = round(self.parts.get(name, 0.0) + time.monotonic() - begin, 2)

    def seconds(self) -> float:
        """Seconds since the fit was started or resumed."""
        return round(time.monotonic() - self.started, 2)

    def log(self, stage: str) -> "FolderLog":
        return FolderLog(self, stage)


@dataclass(frozen=True)
class FolderLog:
    """Writes a training's losses and validation scores to the run's folder and to TensorBoard."""

    context: Context
    stage: str

    def start(self, iteration: int) -> None:
        """Begin at `iteration`: drop what was recorded after it, since it will be recorded again."""
        if self.context.processes.is_main:
            self.context.folder.start()
            self.context.folder.rewind(self.stage, iteration)

    def write(self, iteration: int, line: dict[str, Any]) -> None:
        if not self.context.processes.is_main:
            return
        self.context.folder.record({"stage": self.stage, "iteration": iteration, **line})
        board = self.context.board
        for name, value in (line.get("loss") or line.get("validation") or {}).items():
            if board is not None and isinstance(value, float):
                kind = "loss" if "loss" in line else "validation"
                board.add_scalar(f"{self.stage}/{kind}/{name}", value, iteration)
