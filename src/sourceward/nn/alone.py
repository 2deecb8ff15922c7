"""Passes of a backbone on a CPU whose bits depend on neither the batch nor the number of threads.

Libraries choose their kernels, and with them the order of a sum, by the shape of a batch and the number of
threads; the noise of a chain is keyed by the bits of a feature. So a sample is alone in its pass, one thread
computes it, and several threads compute several samples. With fewer samples than threads, and where passes
may not overlap, all threads share a pass if a trial shows that this gives the same bits: the order of a sum
does not depend on the numbers.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from sourceward._util.threads import available_cores, one_thread
from sourceward.nn.backbones import Backbone
from sourceward.nn.backbones.backbone import SEVERAL

Pass = tuple[Callable[[Any], Tensor], Any]
"""A module, or a bound method of one, and its input."""

KEY = "_trials"
"""Where a module keeps the results of trials."""


@torch.no_grad()
def encode_alone(passes: Sequence[Pass]) -> list[Tensor]:
    """The output of each pass, without gradients, whatever the number of threads."""
    threads = min(torch.get_num_threads(), available_cores())
    overlap = all(_is_stateless(owner) for owner in {_owner(function) for function, _ in passes})
    if (len(passes) < threads or not overlap) and all(_shared_alike(*one) for one in passes):
        return [function(given) for function, given in passes]
    workers = min(threads, len(passes))
    if workers < 2 or not overlap:
        with one_thread():
            return [function(given) for function, given in passes]
    try:
        with ThreadPoolExecutor(workers, initializer=_start_worker) as pool:
            return list(pool.map(_alone, passes))
    finally:
        torch.set_num_threads(torch.get_num_threads())  # the workers set the number for threads to come


def _start_worker() -> None:
    torch.get_num_threads()  # torch sets the number on its first use in a thread, and would do so later
    torch.set_num_threads(1)


@torch.no_grad()
def _alone(one: Pass) -> Tensor:
    function, given = one
    return function(given)


def _shared_alike(function: Callable[[Any], Tensor], given: Any) -> bool:
    """Whether all threads together give the bits of one, found by a trial with random numbers. Texts have too
    many shapes to try."""
    owner = _owner(function)
    if not isinstance(given, Tensor) or owner is None:
        return False
    trials = owner.__dict__.setdefault(KEY, {})
    key = (getattr(function, "__name__", ""), tuple(given.shape), torch.get_num_threads())
    if key not in trials:
        generator = torch.Generator().manual_seed(0)
        trial = torch.randint(256, given.shape, dtype=torch.uint8, generator=generator)
        trial = trial if given.dtype == torch.uint8 else (trial / 128 - 1).to(given.dtype)
        with one_thread():
            alone = function(trial)
        trials[key] = torch.equal(function(trial), alone)
    return trials[key]


def _is_stateless(owner: nn.Module | None) -> bool:
    """Whether passes may overlap. A user's own module might keep what one step leaves for the next."""
    if isinstance(owner, Backbone) and owner.family != SEVERAL:  # its modules are many
        return owner.family != "module"
    return owner is not None and all(map(_is_stateless, owner.children()))


def _owner(function: Any) -> nn.Module | None:
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, nn.Module) else None
