"""Versions of the code behind a number: when it changes, the number is computed again."""

import ast
import hashlib
import inspect
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from sourceward.adaptation import ADAPTERS
from sourceward.bench.controls import linear_control
from sourceward.bench.single_sample import SingleSample
from sourceward.bench.specs import LINEAR, SINGLE

ROOMS = (
    "functional",
    "samplers",
    "nn/__init__.py",
    "nn/energy.py",
    "nn/folded.py",
    "nn/frozen.py",
    "nn/heads.py",
    "nn/latent.py",
    "nn/distilled.py",
    "nn/feature_statistics.py",
    "nn/network.py",
    "nn/projection.py",
    "nn/replay.py",
    "_maybe.py",
    "negatives.py",
    "latents.py",
    "algorithm.py",
    "votes.py",
    "distil.py",
    "settings.py",
    "parallel.py",
    "graphs.py",
    "learner.py",
    "train.py",
    "estimator/estimator.py",
    "estimator/input.py",
    "estimator/sources.py",
    "estimator/tuning.py",
    "data/dataset.py",
    "adapters/base.py",
    "adapters/ebtsa.py",
    "adapters/peer.py",
    "adapters/classifier.py",
    "bench/checkpoints.py",
    "bench/training.py",
    "bench/measures.py",
)
"""Code that a cell's numbers depend on, whatever the data and the adapter."""

RAW_ROOMS = (
    "nn/backbones",
    "data/augment.py",
    "data/augmix.py",
    "data/corrupting.py",
    "data/corruptions",
    "data/decode.py",
    "data/stream.py",
    "data/views.py",
    "fitting/methods",
    "fitting/finetune.py",
    "fitting/selection.py",
    "fitting/settings.py",
    "fitting/values.py",
    "fitting/presets.py",
    "fitting/stage.py",
    "fitting/two_stage.py",
    "fitting/crossfit.py",
    "fitting/joint.py",
    "fitting/arrange.py",
    "fitting/fit.py",
    "fitting/imagined.py",
    "fitting/styles.py",
    "fitting/turns.py",
    "fitting/views.py",
    "adapters/views.py",
    "fitting/task.py",
    "inputs.py",
    "features.py",
    "model/items.py",
    "model/model.py",
    "model/evaluation.py",
    "model/views.py",
)
"""Code that it depends on beside that where the data is images or texts."""

IDLE = (
    "adapters",  # the rest of them: `adapter_version`
    "data",  # the rest of it reads: what it reads has a fingerprint
    "bench",  # cells themselves: `FORMAT`
    "report",
    "estimator/__init__.py",
    "estimator/file.py",
    "fitting/__init__.py",
    "fitting/cost.py",
    "fitting/run_folder.py",
    "model/__init__.py",
    "model/ahead.py",
    "model/card.py",
    "model/file.py",
    "model/hub.py",
    "_registry.py",
    "encoder.py",
    "errors.py",
    "progress.py",
    "watch.py",
    "storage.py",
)
"""Code that a cell runs through, and that changes no number."""

CONTROL_CODE: dict[str, Any] = {LINEAR: linear_control, SINGLE: SingleSample}
ROOT = Path(str(files("sourceward")))


@cache
def code_version(raw: bool) -> str:
    """Of the code that trains and walks; a change of it makes other cells.

    Args:
        raw: whether the data is images or texts; features need less code.
    """
    rooms = ROOMS + RAW_ROOMS if raw else ROOMS
    return _hash(file for room in rooms for file in files_of(room))


@cache
def adapter_version(name: str) -> str:
    """Of the file that an adapter is in, and of those in its room that it imports."""
    code: Any = ADAPTERS[name] if name in ADAPTERS else CONTROL_CODE[name]
    source = inspect.getsourcefile(code)
    if source is None:
        return ""
    own = Path(source).resolve()
    if not own.is_relative_to(ROOT.resolve()):
        return _hash([own])  # the user's
    needed = [file for file in needs(own) if file.parent.name == "adapters" and file.name != "__init__.py"]
    return _hash([own, *needed])


def files_of(room: str) -> list[Path]:
    path = ROOT / room
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def needs(*start: Path) -> list[Path]:
    """The files of this package that some of its files import, directly or not; sorted."""
    found: set[Path] = set()
    todo = list(start)
    while todo:
        new = imported(todo.pop()) - found
        found |= new
        todo += new
    return sorted(found)


@cache
def imported(file: Path) -> frozenset[Path]:
    """The files of this package that one file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.run_chain(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    paths = [ROOT.joinpath(*name.split(".")[1:]) for name in names if name.startswith("sourceward.")]
    tried = [path.with_suffix(".py") for path in paths] + [path / "__init__.py" for path in paths]
    return frozenset(path for path in tried if path.is_file())


def _hash(paths: Iterable[Path]) -> str:
    hasher = hashlib.blake2b(digest_size=6)
    for path in paths:
        hasher.update(path.read_bytes())
    return hasher.hexdigest()
