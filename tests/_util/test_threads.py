"""Threads: quotas of containers, one thread for small products, and what the user set is restored."""

import os

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sourceward import EnergyAdapter, InputError
from sourceward._util.threads import MOST_THREADS, NARROW, available_cores, limit_threads, threads_for
from sourceward.cli.main import build_app
from tests.helpers import QUICK, make_domains

ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, ALL),
        ({"cpu.max": "max 100000"}, ALL),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, ALL),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, ALL),
        ({"cpu/cpu.cfs_quota_us": "90000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_the_quota_of_a_container_is_respected(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert available_cores(tmp_path) == cores


def test_small_products_use_one_thread_and_what_was_set_is_restored(four_threads):
    with threads_for(NARROW):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4
    with threads_for(NARROW + 1):
        assert torch.get_num_threads() == min(4, available_cores())
    with pytest.raises(ZeroDivisionError), threads_for(8):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 4
    limit_threads()
    assert torch.get_num_threads() == min(4, available_cores())


def test_a_fit_has_the_same_bits_with_any_number_of_threads(four_threads):
    """Also through principal components, whose bits change with the threads that compute them."""
    rows, label, source = make_domains(rows=120, dim=300)
    estimators = []
    for threads in (1, 4):
        torch.set_num_threads(threads)
        estimator = EnergyAdapter(**{**QUICK, "max_iter": 5, "num_steps": "auto"})
        estimators.append(estimator.fit(rows, label, sample_domain=source))
        assert torch.get_num_threads() == threads
    states = [estimator.network_.state_dict() for estimator in estimators]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert estimators[0].expected_gain_ == estimators[1].expected_gain_
    assert np.array_equal(*(estimator.predict_proba(rows) for estimator in estimators))


def test_threads_by_command(four_threads, tmp_path):
    done = CliRunner().invoke(
        build_app(), ["predict", str(tmp_path), "x", "--out", "p.csv", "--threads", "3"]
    )
    assert done.exit_code != 0, "there is no model"
    assert torch.get_num_threads() == 3
    done = CliRunner().invoke(
        build_app(), ["predict", str(tmp_path), "x", "--out", "p.csv", "--threads", "0"]
    )
    assert done.exit_code == 2


@pytest.mark.parametrize("count", [MOST_THREADS + 1, 10**11, 2**40, 10**30])
def test_more_threads_than_a_machine_has(four_threads, tmp_path, count):
    """torch keeps the last 32 bits of some of these, and takes all memory for others."""
    command = ["predict", str(tmp_path), "x", "--out", "p.csv", "--threads", str(count)]
    done = CliRunner().invoke(build_app(), command)
    assert isinstance(done.exception, InputError)
    assert "Expected `--threads` to be at most 4,096" in str(done.exception)
    assert torch.get_num_threads() == 4
