"""One cell: what one adapter says of one target after one training. Named by what its numbers depend on.

DIR/bench.json              the configuration; a folder of another one is refused
DIR/cells/KEY.json          numbers, the identity behind KEY, the predicted classes, and samples to look at
DIR/runs/                   the trained models
DIR/results.json            everything together, without samples
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError
from sourceward.model.file import CONFIG
from sourceward.training.run_folder import differences

FORMAT = 3


def key_of(identity: dict[str, Any]) -> str:
    """A name for everything in `identity`.

    >>> key_of({"a": 1}) == key_of({"a": 1}) != key_of({"a": 2})
    True
    """
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


class Folder:
    """The cells of one configuration."""

    def __init__(self, path: Path, configuration: dict[str, Any]) -> None:
        self.path, self.configuration = path, json.loads(json.dumps(configuration))
        self.cells = path / "cells"

    def open(self) -> None:
        """Make it, or refuse the folder of another configuration before anything is computed."""
        from sourceward._util.storage import open_folder, write_whole

        refuse_model(self.path)
        file = self.path / "bench.json"
        if file.exists():
            self._compare(file)
        elif (self.path / "results.json").exists():
            raise InputError(
                f"'{self.path}' holds results of an earlier kind, without their configuration. "
                "Name another folder, or remove this one."
            )
        open_folder(self.path)
        self.cells.mkdir(exist_ok=True)
        write_whole(file, json.dumps(self.configuration, indent=1) + "\n")

    def load(self, key: str) -> dict[str, Any] | None:
        """A finished cell, or None where it is missing or torn."""
        try:
            return json.loads((self.cells / f"{key}.json").read_text())
        except (OSError, ValueError):
            return None

    def store(self, cell: dict[str, Any]) -> None:
        from sourceward._util.storage import write_whole

        write_whole(self.cells / f"{cell['key']}.json", json.dumps(cell) + "\n")

    def _compare(self, file: Path) -> None:
        try:
            before = json.loads(file.read_text())
        except ValueError:
            raise InputError(f"'{file}' is damaged. Remove '{self.path}' to start anew.") from None
        refuse_other(self.path, before, self.configuration)


def refuse_model(path: Path) -> None:
    """Refuse a folder of `fit`, finished or not: results would lie among the files of a model."""
    if any((path / name).exists() for name in (CONFIG, "run.json")):
        raise InputError(
            f"'{path}' holds a model of `sourceward fit`, or one in training. Name an empty or new folder "
            "for the results."
        )


def refuse_other(path: Path, before: Any, now: Any) -> None:
    """Refuse the folder of another configuration, the difference shown."""
    found = list(differences(before, now))
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise InputError(
            f"'{path}' holds results of another configuration: {'; '.join(found[:3])}{more}. "
            "Name another folder, or remove this one."
        )
