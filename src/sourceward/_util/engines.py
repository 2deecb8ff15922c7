"""Run jobs one after the other, in several processes, or on a Ray cluster."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sourceward._util.errors import InputError, TrainingError, unknown_name
from sourceward._util.threads import available_cores

Outcome = tuple[int, Any]
"""Number of the job, and its return value or the exception that lost its worker."""

ENGINES = ("local", "ray")
RETRIES = 3
"""How often Ray starts a job again whose worker was lost."""

WAITING = 4
"""Jobs that wait on a Ray cluster for each of its cores: not all of them need to fit into memory."""


def run_jobs(
    function: Callable[[Any], Any], jobs: Iterable[Any], engine: str = "local", workers: int = 1
) -> Iterator[Outcome]:
    """Yield each job's outcome as it finishes.

    Args:
        function: takes a job; must not raise for what a job itself does wrong.
        jobs: plain data; drawn as they are needed, except by several processes on this machine.
        engine: `local` or `ray`.
        workers: processes on this machine; Ray takes what its cluster has.
    """
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if workers < 1:
        raise InputError(f"Expected `--jobs` to be 1 or more, but got {workers}.")
    if engine == "ray":
        yield from _ray(function, jobs, workers)
    elif workers == 1:
        yield from _here(function, jobs)
    else:
        yield from _processes(function, [*jobs], workers)


def _here(function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Outcome]:
    for number, job in enumerate(jobs):
        if number and not device_works():
            raise TrainingError(
                "The GPU reported an error after which this process cannot use it. Run the same command "
                "again: what is finished is kept. Several workers go on without the job that causes it."
            )
        yield number, function(job)


def device_works() -> bool:
    """Return whether this process can still use its GPU, if it uses one. After an illegal memory access
    every call fails until the process ends."""
    import torch

    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _processes(function: Callable[[Any], Any], jobs: Sequence[Any], workers: int) -> Iterator[Outcome]:
    """Run jobs in a pool; a single one in this process. A worker that dies breaks its pool: lost jobs go on
    in a pool of one, where the first that is lost again is reported; the rest share the cores as before."""
    from concurrent.futures.process import BrokenProcessPool

    if len(jobs) <= 1:
        yield from _here(function, jobs)
        return
    rest, share = dict(enumerate(jobs)), min(workers, len(jobs))
    while rest:
        lost = {}
        for number, outcome in _pool(function, rest, share):
            if isinstance(outcome, BrokenProcessPool):
                lost[number] = outcome
            else:
                yield number, outcome
        if lost and share == 1:
            first = min(lost)
            yield first, lost.pop(first)
            share = min(workers, len(lost))
        else:
            share = 1
        rest = {number: rest[number] for number in sorted(lost)}


def _pool(function: Callable[[Any], Any], jobs: Mapping[int, Any], workers: int) -> Iterator[Outcome]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    threads = _threads_each(workers)
    # Not forked: a child may wait for ever for locks that threads of its parent hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (threads, os.getpid())) as pool:
        numbers = {pool.submit(_in_worker, function, job): number for number, job in jobs.items()}
        for future in as_completed(numbers):
            error = future.exception()
            yield numbers[future], future.result() if error is None else error


def _in_worker(function: Callable[[Any], Any], job: Any) -> Any:
    """Run a job in a worker. A worker whose GPU no longer works ends: it would fail all jobs to come."""
    try:
        return function(job)
    finally:
        if not device_works():
            os._exit(1)


def _threads_each(workers: int) -> int:
    """Return a worker's share of the cores, at most as many threads as OMP_NUM_THREADS allows."""
    import torch

    return max(1, min(torch.get_num_threads(), available_cores() // workers))


def _start_worker(threads: int, parent: int) -> None:
    import torch

    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, which may have been killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _ray(function: Callable[[Any], Any], jobs: Iterable[Any], workers: int) -> Iterator[Outcome]:
    try:
        import ray
    except ImportError:
        raise InputError(
            "Ray is not installed: pip install 'sourceward[ray]', or use --engine local."
        ) from None
    own = not ray.is_initialized()
    if own:
        joined = os.environ.get("RAY_ADDRESS")
        options: dict[str, Any] = {} if joined else {"num_cpus": workers, "include_dashboard": False}
        try:
            ray.init(address=joined, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (OSError, RuntimeError) as error:
            what = f"joined at RAY_ADDRESS={joined}" if joined else "started on this machine"
            raise InputError(
                f"No Ray cluster could be {what}: {str(error).splitlines()[0]} Without one, use --engine "
                "local."
            ) from None
    try:
        gpus = ray.cluster_resources().get("GPU", 0)
        cpus = ray.cluster_resources().get("CPU", 1)
        # Each of the jobs that run at once gets a share of a GPU, so that all of them see one.
        share = {"num_gpus": min(1.0, gpus / cpus)} if gpus else {}
        remote = ray.remote(num_cpus=1, max_retries=RETRIES, **share)(_in_worker)
        drawn = enumerate(jobs)
        first = islice(drawn, int(WAITING * cpus))
        waiting = {remote.remote(function, job): number for number, job in first}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            try:
                outcome = ray.get(done)
            except ray.exceptions.RayError as error:
                outcome = error
            yield waiting.pop(done), outcome
            waiting |= {remote.remote(function, job): number for number, job in islice(drawn, 1)}
    finally:
        if own:
            ray.shutdown()
