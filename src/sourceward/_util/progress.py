"""Progress on standard error: a bar on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

LINE_SECONDS, SHORT_SECONDS = 10.0, 2.0
"""Between two lines where there is no terminal; work that takes less than the second prints nothing."""


class Advance(Protocol):
    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def progress_bar(total: int, title: str, show: bool | None = None) -> Iterator[Advance]:
    """Yield `advance(done, note)`.

    Args:
        total: the final value of `done`.
        title: shown on the left.
        show: True, False, or None for a bar on a terminal and a line every `LINE_SECONDS` elsewhere.
    """
    if show is False:
        yield lambda done, note="": None
        return
    if show is None and not sys.stderr.isatty():
        yield _lines(total, title)
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


def _lines(total: int, title: str) -> Advance:
    start = last = time.monotonic()

    def advance(done: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total and now - start >= SHORT_SECONDS:
            left = ""
        elif now - last >= LINE_SECONDS:
            left = f", about {(now - start) * (total - done) / max(done, 1):.0f} s left"
        else:
            return
        last = now
        line = f"{title}: {done:,} of {total:,}, {now - start:.0f} s{left} {note}"
        print(line.rstrip(), file=sys.stderr, flush=True)

    return advance


def announce(text: str, show: bool | None = None) -> None:
    """Print a sentence about the work ahead on standard error, unless `show` is False."""
    if show is not False:
        print(text, file=sys.stderr, flush=True)
