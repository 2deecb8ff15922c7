"""CPU threads: how many this process may use, and how many are worth it.

A chain on features is thousands of small products. Threads that share one wait for each other at its end, and
where another process has one of the cores, they wait for the scheduler: many times longer than the product
takes. So products up to `NARROW` wide are computed by one thread.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sourceward._util.errors import InputError

MOST_THREADS = 4096
"""More are a slip of the pen, and would take all memory."""

NARROW = 512
"""Width of features up to which one thread computes; `fit` keeps 256 components."""

CGROUPS = Path("/sys/fs/cgroup")


def available_cores(cgroups: Path = CGROUPS) -> int:
    """Cores that this process may use, by its affinity and by the quota of its container; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_quotas(cgroups)]))


@contextmanager
def threads_for(width: int) -> Iterator[None]:
    """Within this context torch computes by as many threads as products of this width are worth.

    The number that was set before is restored, and is never exceeded.
    """
    import torch

    with _threads(1 if width <= NARROW else min(torch.get_num_threads(), available_cores())):
        yield


def one_thread() -> AbstractContextManager[None]:
    """Within this context torch computes by one thread; the number that was set before is restored."""
    return _threads(1)


@contextmanager
def _threads(wanted: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    if wanted == before:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit_threads(count: int | None = None) -> None:
    """Let torch use `count` threads; when None, at most as many as there are available cores."""
    import torch

    wanted = min(torch.get_num_threads(), available_cores()) if count is None else count
    if wanted > MOST_THREADS:
        raise InputError(f"Expected `--threads` to be at most {MOST_THREADS:,}, but got {wanted:,}.")
    if wanted != torch.get_num_threads():
        torch.set_num_threads(wanted)


def _quotas(cgroups: Path) -> Iterator[int]:
    """CPU quotas of control groups, version 2 and 1, in whole cores, rounded up."""
    pairs = [file.split() for file in _read(cgroups / "cpu.max")]
    for quota, period in zip(
        _read(cgroups / "cpu/cpu.cfs_quota_us"), _read(cgroups / "cpu/cpu.cfs_period_us")
    ):
        pairs.append([quota, period])
    for quota, period in pairs:
        if quota.lstrip("-").isdigit() and int(quota) > 0:
            yield -(-int(quota) // int(period))


def _read(file: Path) -> list[str]:
    try:
        return [file.read_text().strip()]
    except OSError:
        return []
