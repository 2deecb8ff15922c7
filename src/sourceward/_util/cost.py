"""Measure the time and memory of a computation."""

import time

import torch


class Meter:
    """A meter of seconds and peak memory since its construction.

    >>> cost = Meter(torch.device("cpu")).read()
    >>> sorted(cost)
    ['peak_memory_mb', 'seconds']
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.started = device, time.monotonic()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> dict[str, float]:
        """Return seconds and peak memory so far."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = time.monotonic() - self.started
        return {"seconds": round(seconds, 2), "peak_memory_mb": round(peak_memory(self.device), 1)}


def peak_memory(device: torch.device) -> float:
    """Return the peak memory in MB (2^20 bytes) of a CUDA device, or of this process for a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # not on Windows
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
