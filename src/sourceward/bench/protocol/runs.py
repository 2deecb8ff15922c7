"""Runs on disk. A run is one method on one target after one training, named by what its numbers depend on.

DIR/bench.json              the configuration; the folder of another one is refused
DIR/runs/KEY.json           numbers, the identity behind KEY, the predicted classes, and example samples
DIR/runs/KEY.failed.json    why a run has no numbers: it failed, or its adapter does not apply
DIR/models/                 the trained models
DIR/results.json            everything together, without samples
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from sourceward._util import values
from sourceward._util.errors import InputError
from sourceward._util.storage import open_folder, write_whole
from sourceward.model.file import CONFIG
from sourceward.training.run_folder import differences

FORMAT = 4
FAILED = ".failed.json"


def key_of(identity: Any) -> str:
    """Return a hash of everything in `identity`.

    >>> key_of({"a": 1}) == key_of({"a": 1}) != key_of({"a": 2})
    True
    """
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


class Folder:
    """The runs of one configuration."""

    def __init__(self, path: Path, configuration: dict[str, Any]) -> None:
        self.path, self.configuration = path, json.loads(json.dumps(configuration))
        self.runs = path / "runs"

    def open(self) -> None:
        """Create the folder, or refuse that of another configuration before anything is computed."""
        refuse_model(self.path)
        file = self.path / "bench.json"
        if file.exists():
            refuse_other(self.path, read_json(file), self.configuration)
        elif (self.path / "results.json").exists():
            raise InputError(
                f"'{self.path}' holds results of an earlier version, without their configuration. "
                "Name another folder, or remove this one."
            )
        open_folder(self.path)
        self.runs.mkdir(exist_ok=True)
        write_whole(file, json.dumps(self.configuration, indent=1) + "\n")

    def load(self, key: str) -> dict[str, Any] | None:
        """Return a finished run, or None where it is missing or damaged."""
        return self._read(f"{key}.json")

    def failure(self, key: str) -> dict[str, Any] | None:
        """Return why a run failed or does not apply; None where it has not been tried, or has finished."""
        return None if self.load(key) is not None else self._read(f"{key}{FAILED}")

    def settled(self, key: str) -> bool:
        """Return whether a run has finished or does not apply; one that failed may be tried again."""
        return self.load(key) is not None or bool((self.failure(key) or {}).get("unsuitable"))

    def store(self, run: dict[str, Any]) -> None:
        """Write a run that finished or failed."""
        ending = FAILED if "failed" in run else ".json"
        write_whole(self.runs / f"{run['key']}{ending}", json.dumps(run) + "\n")

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = values.read_json(self.runs / name)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def read_json(file: Path) -> Any:
    """Read a file of a results folder, or say that it is damaged."""
    try:
        return values.read_json(file)
    except InputError:
        raise
    except ValueError:
        raise InputError(f"'{file}' is damaged. Remove '{file.parent}' to start again.") from None


def refuse_model(path: Path) -> None:
    """Refuse a folder of `fit`, finished or not: results must not lie among the files of a model."""
    if any((path / name).exists() for name in (CONFIG, "run.json")):
        raise InputError(
            f"'{path}' holds a model of `sourceward fit`, or one in training. Name an empty or new folder "
            "for the results."
        )


def refuse_other(path: Path, before: Any, now: Any) -> None:
    """Refuse the folder of another configuration and show the difference."""
    found = list(differences(before, now))
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise InputError(
            f"'{path}' holds results of another configuration: {'; '.join(found[:3])}{more}. "
            "Name another folder, or remove this one."
        )
