"""Passes of a backbone on a CPU whose bits depend on neither the batch nor the number of threads.

Libraries choose their kernels, and with them the order of a sum, by the shape of a batch and the number of
threads; the noise of a chain is keyed by the bits of a feature. So a sample is alone in its pass, one thread
computes it, and several threads compute several samples. With fewer samples than threads, and where passes
may not overlap, all threads share a pass if a trial shows that this gives the same bits: the order of a sum
does not depend on the numbers.

Threads that share a pass wait for each other at the end of every product. Where other processes have the
cores, that takes many times as long as one thread does: then one thread computes for a while.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import torch
from torch import Tensor, nn

from sourceward._util.devices import without_autocast
from sourceward._util.threads import available_cores, one_thread
from sourceward.nn.backbones import Backbone
from sourceward.nn.backbones.backbone import SEVERAL
from sourceward.nn.folded_batchnorm import fold_batchnorm, random_like
from sourceward.nn.kept import kept

Pass = tuple[Callable[[Any], Tensor], Any]
"""A module, or a bound method of one, and its input."""

PAUSE = 100
"""One thread computes for this many times what the second of two slow shared passes took: so such passes are
at most one fiftieth of the time."""
SLOWER = 1.5
"""Passes that take this many times what one thread takes are slower; beside busy processes it is more."""

_pools: dict[int, ThreadPoolExecutor] = {}
"""Threads that compute passes, by their number. They stay: in a new thread the first pass is slow."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # a forked process has none of them


@dataclass
class Trial:
    """What is known of passes of one shape: whether all threads give the bits of one."""

    alike: bool
    seconds: float
    """Of one thread."""
    slow: bool = False
    """Whether threads took longer the last time they shared a pass."""
    busy_until: float = 0.0
    """When threads may share a pass again."""


@without_autocast()  # the workers have none
@torch.no_grad()
def encode_alone(passes: Sequence[Pass]) -> list[Tensor]:
    """The output of each pass, without gradients, whatever the number of threads."""
    threads = min(torch.get_num_threads(), available_cores())
    passes = _without_batchnorm(passes)
    overlap = all(_is_stateless(owner) for owner in {_owner(function) for function, _ in passes})
    if len(passes) < threads or not overlap:
        found = _shared(passes)
        if found is not None:
            return found
    if min(threads, len(passes)) < 2 or not overlap:
        with one_thread():
            return [function(given) for function, given in passes]
    return list(_threads(threads).map(_alone, passes))


def _without_batchnorm(passes: Sequence[Pass]) -> list[Pass]:
    """The same passes of copies whose batch norm is folded into convolutions; see `nn.folded_batchnorm`."""
    first = dict(reversed(passes))
    if not first or not all(_is_stateless(_owner(function)) for function in first):
        return list(passes)
    folded = fold_batchnorm(first)
    return [(folded[function], given) for function, given in passes]


def _threads(count: int) -> ThreadPoolExecutor:
    """Threads that compute by one thread each."""
    if count not in _pools:
        started = Barrier(count)
        pool = ThreadPoolExecutor(count, "pass", _start_worker, (started,))
        try:
            list(pool.map(torch.is_tensor, range(count)))
        except BaseException:
            started.abort()  # those that did start end, and so can the process
            raise
        finally:
            torch.set_num_threads(torch.get_num_threads())  # the workers set the number for threads to come
        _pools[count] = pool
    return _pools[count]


def _start_worker(started: Barrier) -> None:
    torch.get_num_threads()  # torch sets the number on its first use in a thread, and would do so later
    torch.set_num_threads(1)
    started.wait()


@torch.no_grad()
def _alone(one: Pass) -> Tensor:
    function, given = one
    return function(given)


def _shared(passes: Sequence[Pass]) -> list[Tensor] | None:
    """The output of each pass, computed by all threads together; None where one thread is to compute."""
    trials = [_trial(*one) for one in passes]
    known = [trial for trial in trials if trial is not None and trial.alike]
    started = time.monotonic()
    if len(known) < len(trials) or any(started < trial.busy_until for trial in known):
        return None
    found = [function(given) for function, given in passes]
    seconds = time.monotonic() - started
    slow = seconds > SLOWER * sum(trial.seconds for trial in known)
    for trial in {id(trial): trial for trial in known}.values():
        if slow and trial.slow:  # once may be chance
            trial.busy_until = started + PAUSE * seconds
        trial.slow = slow
    return found


def _trial(function: Callable[[Any], Tensor], given: Any) -> Trial | None:
    """Compare all threads together with one, on random numbers. Texts have too many shapes to try."""
    owner = _owner(function)
    if not isinstance(given, Tensor) or owner is None:
        return None
    trials = kept(owner).trials
    key = (getattr(function, "__name__", ""), tuple(given.shape), given.dtype, torch.get_num_threads())
    if key not in trials:
        trial = random_like(given)
        together = function(trial)
        with one_thread():
            alone = function(trial)  # the first pass of a shape is slow
            started = time.monotonic()
            function(trial)
        trials[key] = Trial(torch.equal(together, alone), time.monotonic() - started)
    return trials[key]


def _is_stateless(owner: nn.Module | None) -> bool:
    """Whether passes may overlap. A user's own module might keep what one step leaves for the next."""
    if isinstance(owner, Backbone) and owner.family != SEVERAL:  # its modules are many
        return owner.family != "module"
    return owner is not None and all(map(_is_stateless, owner.children()))


def _owner(function: Any) -> nn.Module | None:
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, nn.Module) else None
