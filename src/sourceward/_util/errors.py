"""Errors: `InputError` for input that the user has to fix, `TrainingError` for failed training.

Every message says what was expected, what was found and what to do. The command line turns an
`InputError` into a single line on standard error and exit code 2; anything else is a bug and exits 1.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class InputError(ValueError):
    """The caller's data, setting or file is wrong."""


class CheckpointError(InputError):
    """A checkpoint is damaged, or belongs to another training.

    Args:
        path: of the checkpoint.
        message: what is wrong, and what to do.
    """

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class TrainingError(RuntimeError):
    """Training cannot go on: features collapsed, an energy diverged. The message says what to change."""


def unknown_name(kind: str, name: object, known: Iterable[str | None]) -> InputError:
    """Return the error for an unknown name, with the nearest known names.

    >>> print(unknown_name("sampler", "langvin", ["langevin", "nesterov"]))
    Unknown sampler 'langvin'. Did you mean 'langevin'? Known: langevin, nesterov.
    >>> print(unknown_name("preset", "pacs", ["pacs-resnet18", "pheme"]))
    Unknown preset 'pacs'. Did you mean 'pacs-resnet18'? Known: pacs-resnet18, pheme.
    """
    names = sorted("none" if one is None else one for one in known)
    near = get_close_matches(str(name), names, n=3, cutoff=0.5)
    near = near or [longer for longer in names if name and longer.startswith(str(name))][:3]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return InputError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")
