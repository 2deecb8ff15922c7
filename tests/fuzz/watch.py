"""What a case does to the rest of the machine: an audit hook of the interpreter sees every file that Python
opens for writing, every program that it starts and every connection that it makes."""

import os
import sys
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = (
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.rename",
    "os.truncate",
    "os.symlink",
    "os.link",
    "os.chmod",
)
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
OTHERS = ("__pycache__", "/ray/session_")
"""In paths that are written at any time: by the interpreter, and by Ray where another test of the process has
started it."""


class Watch:
    """Collects what must not happen while it is active; a hook cannot be removed, so there is one for all."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.allowed: tuple[str, ...] | None = None
        self.installed = False

    def start(self, *allowed: Path) -> None:
        """Allow changes below these folders alone."""
        if not self.installed:
            sys.addaudithook(self._hook)
            self.installed = True
        self.seen = []
        self.allowed = tuple(f"{os.path.realpath(path)}/" for path in allowed)

    def stop(self) -> list[str]:
        """Return what was seen, and watch no more."""
        self.allowed = None
        return self.seen

    def _hook(self, event: str, given: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        if (event == "open" and isinstance(given[2], int) and given[2] & WRITES) or event in CHANGES:
            self._changed(event, given[0])
        elif event in PROGRAMS:
            self.seen.append(f"{event} {given[0]!r}")
        elif event == "socket.connect" and isinstance(given[1], tuple) and given[1][0] not in LOOPBACK:
            self.seen.append(f"{event} {given[1]!r}")

    def _changed(self, event: str, path: Any) -> None:
        if self.allowed is None or not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor
        name = os.fsdecode(path)
        if name == os.devnull or any(part in name for part in OTHERS):
            return
        try:
            real = os.path.join(os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name))
        except ValueError:  # a null character: the call fails by itself
            return
        if not f"{real}/".startswith(self.allowed):
            self.seen.append(f"{event} {name!r}")


WATCH = Watch()
