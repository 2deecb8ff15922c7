"""The same jobs here, in processes and on a Ray cluster; a worker that dies in the middle."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sourceward._util.engines import run_jobs
from sourceward._util.errors import InputError, TrainingError
from sourceward.bench.protocol.jobs import run_job
from sourceward.bench.protocol.plan import bench
from tests.bench.protocol.test_plan import feature_file, plan, timeless


def double(number):
    return 2 * number


def double_or_die(number):
    if number == 3:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def run_or_die_once(job):
    """The job, after killing its own worker when it is run for the first time."""
    mark = Path(job.folder).parent / "killed"
    if job.left_out == ("b",) and job.seed == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run_job(job)


def threads(job):
    import torch

    return torch.get_num_threads()


def test_workers_take_no_more_threads_than_are_allowed(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr("sourceward._util.engines.available_cores", lambda: 16)
    assert dict(run_jobs(threads, [1, 2], "local", 2)) == {0: 1, 1: 1}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert dict(run_jobs(threads, [1, 2], "local", 2)) == {0: 8, 1: 8}


def test_every_job_comes_back_with_its_number():
    assert dict(run_jobs(double, [1, 2, 3])) == {0: 2, 1: 4, 2: 6}


def test_processes_share_the_work_and_a_lost_one_is_reported():
    outcomes = dict(run_jobs(double_or_die, [1, 2, 3], "local", 2))
    assert (outcomes[0], outcomes[1]) == (2, 4)
    assert isinstance(outcomes[2], Exception)


def die_at_zero(number):
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def break_the_gpu_at_zero(number):
    import torch

    def synchronize():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    if number == 0:
        torch.cuda.is_initialized, torch.cuda.synchronize = (lambda: True), synchronize
    elif torch.cuda.is_initialized():
        synchronize()
    return 2 * number


@pytest.mark.parametrize("function", [die_at_zero, break_the_gpu_at_zero])
def test_a_worker_that_dies_or_whose_gpu_fails_takes_no_other_job_along(function):
    outcomes = dict(run_jobs(function, [1, 0, 2, 3, 4], "local", 2))
    assert isinstance(outcomes.pop(1), Exception)
    assert outcomes == {0: 2, 2: 4, 3: 6, 4: 8}


def test_a_gpu_that_fails_in_this_process_ends_the_command_with_a_sentence(monkeypatch):
    for name in ("is_initialized", "synchronize"):
        monkeypatch.setattr(f"torch.cuda.{name}", getattr(torch.cuda, name))
    outcomes = run_jobs(break_the_gpu_at_zero, [1, 0, 2])
    assert [next(outcomes), next(outcomes)] == [(0, 2), (1, 0)]
    with pytest.raises(TrainingError, match="Run the same command again"):
        next(outcomes)


def test_bad_input():
    with pytest.raises(InputError, match="Did you mean 'ray'"):
        list(run_jobs(double, [1], "rya"))
    with pytest.raises(InputError, match="`--jobs` to be 1 or more"):
        list(run_jobs(double, [1], "local", 0))


def test_other_code_on_a_worker_is_found(tmp_path, monkeypatch):
    """Numbers of another version must not be mixed with those of this one."""

    def elsewhere(job):
        """The key of a run is of its identity, so it is another one there."""
        return [
            run | {"key": f"{number:016}", "identity": run["identity"] | {"code": "other"}}
            for number, run in enumerate(run_job(job))
        ]

    monkeypatch.setattr("sourceward.bench.protocol.plan.run_job", elsewhere)
    results = bench(plan(feature_file(tmp_path / "f.npz"), targets=("a",)), tmp_path / "out")
    assert "other code" in results["failed"][0]["reason"]
    assert not results["table"]
    assert results["unfinished"] == 0


def test_a_cluster_that_cannot_be_joined_is_an_input_error(monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install sourceward[ray])")

    def refuse(**options):
        raise ConnectionError("Could not find any running Ray instance.\nMore lines.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    with pytest.raises(InputError, match=r"joined at RAY_ADDRESS=127.0.0.1:6379: Could not find"):
        list(run_jobs(double, [1], "ray"))


@pytest.mark.xdist_group("ray")
def test_a_ray_cluster_survives_the_death_of_a_worker(ray_cluster, tmp_path, monkeypatch):
    """A bench on two nodes: a worker is killed in the middle, Ray starts its job again, no run is lost."""
    wanted = replace(plan(feature_file(tmp_path / "f.npz")), methods=plan("").methods[1:])
    here = bench(wanted, tmp_path / "local")
    monkeypatch.setattr("sourceward.bench.protocol.plan.run_job", run_or_die_once)
    there = bench(wanted, tmp_path / "ray", engine="ray")
    assert (tmp_path / "ray" / "killed").exists(), "no worker was killed"
    assert not there["failed"]
    assert timeless(there["table"]) == timeless(here["table"])


@pytest.mark.xdist_group("ray")
def test_a_ray_worker_whose_gpu_fails_takes_no_other_job_along(ray_cluster):
    outcomes = dict(run_jobs(break_the_gpu_at_zero, [1, 0, 2, 3, 4], "ray"))
    assert isinstance(outcomes.pop(1), Exception)
    assert outcomes == {0: 2, 2: 4, 3: 6, 4: 8}
