"""Devices; processes that train together (several need accelerate); time and memory of a computation."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sourceward._util.errors import InputError


def choose_device(name: str | torch.device) -> torch.device:
    """Return the device of a name; `auto` is CUDA if it is available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        known = device.type in ("cpu", "cuda")
    except (RuntimeError, TypeError):
        known = False
    if not known:
        raise InputError(f"Expected `device` to be 'cpu', 'cuda' or 'auto', but got {name!r}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"Device {str(name)!r} was requested, but no CUDA device is available. Use 'cpu' or 'auto'."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"Expected one of {torch.cuda.device_count()} CUDA devices, but got {str(name)!r}.")
    return device


@contextmanager
def tensor_cores(enabled: bool) -> Iterator[None]:
    """Let float32 products use tensor cores (TF32) in this block, on a device that has them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if enabled else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in this block as if the caller were not under `torch.autocast`."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@dataclass(frozen=True)
class Processes:
    """Rank and number of the processes that train together."""

    rank: int = 0
    count: int = 1
    state: Any = None
    """accelerate's `PartialState` when there are several."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average gradients over all processes, in one all-reduce."""
        if self.count == 1:
            return
        from accelerate.utils import reduce

        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = reduce(torch.cat([g.flatten() for g in gradients]), "mean")
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(mean.view_as(gradient))

    def gather(self, tensor: Tensor, device: torch.device) -> Tensor:
        """Return this tensor of every process, stacked to (count, ...) on the CPU."""
        if self.count == 1:
            return tensor.cpu().unsqueeze(0)
        mine = tensor.to(device).contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.count)]
        torch.distributed.all_gather(parts, mine)
        return torch.stack(parts).cpu()

    def wait(self) -> None:
        if self.state is not None:
            self.state.wait_for_everyone()

    def main_first(self) -> AbstractContextManager:
        """Let the main process run a block first, e.g. to fill a cache that the others read."""
        return nullcontext() if self.state is None else self.state.main_process_first()


ALONE = Processes()


def join_processes(device: str | torch.device) -> tuple[Processes, torch.device]:
    """Return the processes (one unless under `accelerate launch` or `torchrun`) and the device."""
    chosen = choose_device(device)
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return ALONE, chosen
    try:
        from accelerate import PartialState
    except ImportError:
        raise InputError(
            "Several processes need accelerate: pip install 'sourceward[train]', or start a single process."
        ) from None
    state = PartialState(cpu=chosen.type == "cpu")
    return Processes(state.process_index, state.num_processes, state), torch.device(state.device)


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
