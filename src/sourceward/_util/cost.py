"""What a piece of work costs: seconds and memory."""

import time

import torch


class Meter:
    """Seconds and peak memory from its making on.

    >>> cost = Meter(torch.device("cpu")).read()
    >>> sorted(cost)
    ['peak_memory_mb', 'seconds']
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.started = device, time.monotonic()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> dict[str, float]:
        """So far."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = time.monotonic() - self.started
        return {"seconds": round(seconds, 2), "peak_memory_mb": round(peak_memory(self.device), 1)}


def peak_memory(device: torch.device) -> float:
    """In MB (2^20 bytes): of the device, or of the whole process so far where that is a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # not on Windows
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
