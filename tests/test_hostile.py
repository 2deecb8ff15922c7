"""Odd settings, labels and signals: refused in one sentence, before the work, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from sourceward import EnergyAdapter, InputError
from sourceward._util.devices import choose_device
from sourceward._util.storage import held_folder
from sourceward.functional import principal_components
from sourceward.nn.backbones import create_backbone
from sourceward.training.configuration import settings_for
from tests.helpers import QUICK, make_domains
from tests.tiny_runs import fit_tiny, image_folder, tiny_features

X, Y, SOURCE = make_domains()


@pytest.mark.parametrize("device", ["mps", "meta", "cuda:99", "nothing", 3.5, ""])
def test_devices_that_are_not_there(device):
    with pytest.raises(InputError, match=r"device"):
        choose_device(device)


@pytest.mark.parametrize(
    "setting",
    [
        {"step_size": 1e308},
        {"step_size": 10**400},
        {"noise_std": 1e308},
        {"num_steps": 10**20},
        {"num_draws": 10**20},
        {"batch_size": 10**20},
        {"max_iter": 10**20},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_sizes_that_are_slips_of_the_pen(setting):
    with pytest.raises(InputError, match="Expected"):
        EnergyAdapter(**{**QUICK, **setting}).fit(X, Y, sample_domain=SOURCE)


def test_an_unknown_schedule_where_none_is_allowed():
    with pytest.raises(InputError, match=r"Unknown energy_schedule 'x'.* Known: .*none"):
        settings_for(True, {"energy_schedule": "x"})


def test_images_of_impossible_size():
    with pytest.raises(InputError, match="pixels"):
        create_backbone("tiny:conv", image_size=10**20)


@pytest.mark.parametrize(
    "labels",
    [
        Y.astype("datetime64[D]"),
        np.array([b"a", b"b", b"c"])[Y],
        np.array([frozenset([n]) for n in Y]),
        np.array([np.datetime64("2020-01-01").item()] * len(Y), dtype=object),
    ],
    ids=["dates", "bytes", "objects", "date objects"],
)
def test_labels_that_no_file_can_hold_are_refused_before_training(labels):
    with pytest.raises(InputError):
        EnergyAdapter(**QUICK).fit(X, labels, sample_domain=SOURCE)


def test_complex_features_are_refused():
    with pytest.raises(InputError, match="Complex data not supported"):
        EnergyAdapter(**QUICK).fit(X + 1j, Y, sample_domain=SOURCE)


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"\x80\x02c", b"\x80\x04\x95" + bytes(20), b"garbage" * 9]
)
def test_damaged_pt_files(tmp_path, data):
    (tmp_path / "w.pt").write_bytes(data)
    with pytest.raises(InputError, match="Could not read weights"):
        create_backbone("tiny:conv", weights=tmp_path / "w.pt")


@pytest.mark.parametrize(
    "change", [torch.Tensor.to_sparse, lambda one: one.to(torch.complex64), lambda one: one.to("meta")]
)
def test_pt_files_of_odd_tensors(tmp_path, change):
    weights = create_backbone("tiny:conv", weights=None).network.state_dict()
    name = next(name for name, tensor in weights.items() if tensor.is_floating_point())
    torch.save({**weights, name: change(weights[name])}, tmp_path / "w.pt")
    with pytest.raises(InputError, match=f"dense real numbers, but {name} is of type"):
        create_backbone("tiny:conv", weights=tmp_path / "w.pt")


def test_no_advice_to_run_the_code_of_a_pt_file(tmp_path, recwarn):
    torch.save({"a": torch.zeros(1), "b": os.system}, tmp_path / "w.pt")
    for data in (None, b"\x80\x04\x95" + bytes(20)):
        if data:
            (tmp_path / "w.pt").write_bytes(data)
        with pytest.raises(InputError, match="damaged, or holds more than tensors") as caught:
            create_backbone("tiny:conv", weights=tmp_path / "w.pt")
        assert "weights_only" not in str(caught.value)
    assert not recwarn


def test_a_pt_file_that_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "w.pt")
    with pytest.raises(InputError, match="there is no file"):
        create_backbone("tiny:conv", weights=tmp_path / "w.pt")


def test_principal_components_of_wide_features_are_those_of_the_covariance():
    """More columns than rows: seconds, not minutes, and the same directions."""
    rows = torch.randn(40, 90, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 3, 90)
    centred = rows.double() - rows.double().mean(0)
    expected = torch.linalg.eigh(centred.T @ centred)[1].flip(1)[:, :10]
    found = principal_components(rows, 10).double()
    assert torch.allclose((found.T @ expected).abs(), torch.eye(10, dtype=torch.float64), atol=1e-5)
    assert principal_components(rows, 60).shape == (90, 39), "40 rows vary in 39 directions"
    started = time.process_time()
    principal_components(torch.randn(100, 6400), 64)
    assert time.process_time() - started < 5


def test_two_fits_into_one_folder(tmp_path):
    with held_folder(tmp_path / "run"), pytest.raises(InputError, match="Another process is writing to"):
        fit_tiny(tiny_features(), tmp_path / "run")
    fit_tiny(tiny_features(), tmp_path / "run")


def test_interrupted_it_says_what_is_kept(tmp_path):
    command = [sys.executable, "-m", "sourceward", "fit", image_folder(tmp_path / "images"), "--out"]
    command += [tmp_path / "run", "--backbone", "tiny:conv", "--weights", "none", "--target", "c"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    child = subprocess.Popen(
        [*map(str, command), "--set", "finetune.max_iter=100000"], stderr=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Interrupted." in said
    assert "run the same command again" in said
    assert "Traceback" not in said


POOL = """
import os, sys, time
from sourceward._util.engines import run_jobs

def work(job):
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    list(run_jobs(work, [1, 2], workers=2))
"""


def test_workers_end_with_the_process_that_started_them(tmp_path):
    (tmp_path / "pool.py").write_text(POOL)
    child = subprocess.Popen([sys.executable, tmp_path / "pool.py"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    workers = [int(child.stdout.readline()) for _ in range(2)]
    child.kill()
    child.wait()
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{worker}") for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    alive = [worker for worker in workers if os.path.exists(f"/proc/{worker}")]
    child.stdout.close()
    assert not alive
