"""Timing: medians with quartiles, memory, and how a cost grows."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def timed(
    function: Callable[[], Any],
    device: torch.device,
    *,
    repeats: int = 30,
    seconds: float = 1.0,
    least: int = 3,
) -> dict[str, float]:
    """Return milliseconds of a call after warming up: median and quartiles of up to `repeats` calls.

    Args:
        function: what is timed; each call waits for the device.
        device: where it runs.
        repeats: at most this many calls.
        seconds: stop after about this long.
        least: at least this many calls.
    """
    for _ in range(least - 1):
        function()
    wait(device)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < least or (len(times) < repeats and time.perf_counter() - begin < seconds):
        start = time.perf_counter()
        function()
        wait(device)
        times.append(1e3 * (time.perf_counter() - start))
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"median_ms": middle, "low_ms": low, "high_ms": high, "repeats": len(times)}


def timed_in_turn(
    calls: Mapping[str, Callable[[], Any]], device: torch.device, rounds: int
) -> dict[str, tuple[float, float]]:
    """Return, for each call, its median milliseconds and the median of its ratio to the first call of the
    same round: the speed of a shared machine changes, and a round is short.

    Args:
        calls: by name.
        device: where they run; each call waits for it.
        rounds: in each of which every call is timed once, after one that warms up.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, function in calls.items():
            start = time.perf_counter()
            function()
            wait(device)
            if turn:
                times[name].append(1e3 * (time.perf_counter() - start))
    first, median = next(iter(times.values())), statistics.median
    return {name: (median(own), median(a / b for a, b in zip(own, first))) for name, own in times.items()}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def growth(costs: Mapping[int, float]) -> dict[str, float]:
    """Return the exponent of cost ~ size^exponent (1 is linear), and the factor of a doubling.

    >>> growth({1: 2.0, 2: 4.0, 4: 8.0})
    {'exponent': 1.0, 'per_doubling': 2.0}
    """
    points = [(math.log(size), math.log(cost)) for size, cost in costs.items()]
    x, y = (statistics.fmean(p[i] for p in points) for i in (0, 1))
    slope = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return {"exponent": round(slope, 3), "per_doubling": round(2**slope, 3)}


def peak_memory(function: Callable[[], Any], device: torch.device) -> float | None:
    """Return the MB (2^20 bytes) that a call allocates at most, on a CPU those of the process; None where
    the system does not tell."""
    if device.type != "cuda":
        return _peak_of_process(function)
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    wait(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def _peak_of_process(function: Callable[[], Any]) -> float | None:
    """Linux: resident memory at its peak, above that before the call."""
    own = Path("/proc/self")
    try:
        before = _status(own)["VmRSS"]
        (own / "clear_refs").write_text("5")  # starts the peak anew
    except (OSError, KeyError):
        function()
        return None
    function()
    return (_status(own)["VmHWM"] - before) / 2**10


def _status(process: Path) -> dict[str, int]:
    """Memory of a process in units of 1024 bytes, by the names that Linux gives it."""
    lines = (line.split() for line in (process / "status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1] == "kB"}
