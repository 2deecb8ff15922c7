"""How a training goes, for those who watch it: its loss by parts, the energy gap, its speed."""

import time
from typing import Any, Protocol

import torch

from sourceward._util.progress import Advance
from sourceward.functional import Loss
from sourceward.training.learner import CHECK_EVERY


class Log(Protocol):
    """Where a training writes down how it goes."""

    def start(self, iteration: int) -> None:
        """It begins, or goes on from a checkpoint: what was written after that will be written again."""

    def write(self, iteration: int, line: dict[str, Any]) -> None: ...


class Watch:
    """Looks at the loss now and then, since every look waits for the device, and tells what it sees.

    Its speed is that of `train`, checkpoints included.

    Args:
        total: iterations of the training.
        rows: samples of one iteration.
        advance: moves the progress bar.
        log: where to write it down, too.
    """

    def __init__(self, total: int, rows: int, advance: Advance, log: Log | None = None) -> None:
        self.total, self.rows, self.advance, self.log = total, rows, advance, log
        self.speed, self.note = Speed(), ""

    def start(self, iteration: int) -> None:
        self.speed.start(iteration, self.rows)
        if self.log is not None:
            self.log.start(iteration)

    def __call__(self, iteration: int, loss: Loss) -> None:
        if iteration % CHECK_EVERY == 0 or iteration == self.total:
            parts = parts_of(loss)
            speed = self.speed.lap(iteration)
            self.note = f"{note_of(parts)} {speed:,.0f}/s"
            if self.log is not None:
                self.log.write(iteration, {"loss": parts, "per_second": round(speed, 1)})
        self.advance(iteration, self.note)


def parts_of(loss: Loss) -> dict[str, float]:
    """What a log says of a loss, the energy gap (negatives over positives) included; waits for the device."""
    parts = dict(zip(Loss._fields, torch.stack(list(loss)).tolist()))
    return parts | {"energy_gap": -parts["contrast"]}


def note_of(parts: dict[str, float]) -> str:
    """What a progress bar says of it."""
    return f"loss {parts['total']:.2f} classify {parts['classify']:.2f} gap {parts['energy_gap']:.3f}"


class Speed:
    """Samples per second; what ends with a `pause`, such as a look at validation, does not count."""

    def __init__(self) -> None:
        self.laps: list[tuple[int, float]] = []

    def start(self, iteration: int, rows: int) -> None:
        self.rows = rows
        self.pause(iteration)

    def pause(self, iteration: int) -> None:
        """Time counts from here."""
        self.mark, self.clock = iteration, time.monotonic()

    def lap(self, iteration: int) -> float:
        """Of the time since the last call; the device must have finished."""
        rows, seconds = self.rows * (iteration - self.mark), time.monotonic() - self.clock
        self.laps.append((rows, seconds))
        self.pause(iteration)
        return rows / max(seconds, 1e-9)

    def steady(self) -> float | None:
        """Of all laps but the first, in which kernels are chosen and memory is found."""
        laps = self.laps[1:] or self.laps
        seconds = sum(seconds for _, seconds in laps)
        return round(sum(rows for rows, _ in laps) / seconds, 1) if seconds else None
