"""A progress bar on standard error, by rich if it is installed, else plain text."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def progress_bar(total: int, title: str, show: bool | None = None) -> Iterator[Advance]:
    """Yield `advance(done, note)`.

    Args:
        total: the final value of `done`.
        title: shown on the left.
        show: True, False, or None to show it when standard error is a terminal.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda done, note="": None
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        yield _plain(total, title)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)


def _plain(total: int, title: str) -> Advance:
    last = 0.0

    def advance(done: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total or now - last > 1:
            last = now
            print(f"\r{title} {done}/{total} {note}", end="\n" if done >= total else "", file=sys.stderr)

    return advance
