"""`sourceward bench`, and the command around it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from sourceward.bench.protocol.provenance import command
from tests.helpers import make_domains


def sourceward(*arguments):
    return subprocess.run([sys.executable, "-m", "sourceward", *arguments], capture_output=True, text=True)


@pytest.fixture
def file(tmp_path):
    X, y, domain = make_domains(sources=2, classes=2, dim=4, rows=12)
    np.savez(tmp_path / "f.npz", features=X, label=y, domain=domain)
    return str(tmp_path / "f.npz")


def test_results_are_written_with_their_command(file, tmp_path):
    out = tmp_path / "out"
    quick = [f"--set={k}" for k in ("max_iter=3", "batch_size=8", "train.num_steps=2", "train.chains=4")]
    done = sourceward("bench", file, "--out", str(out), "--steps", "0,2", *quick)
    assert done.returncode == 0, done.stderr
    results = json.loads((out / "results.json").read_text())
    assert results["command"].startswith("sourceward bench f.npz --out out --steps 0,2")
    assert {"versions", "settings", "runs", "table", "plus_minus"} < set(results)
    assert "linear control" in done.stdout
    assert "requires" in done.stdout
    assert "ms a sample" in done.stdout
    assert "95 % paired bootstrap interval over samples" in " ".join(done.stdout.split())


def test_bad_input_is_one_line_and_exit_code_2(file, tmp_path):
    done = sourceward("bench", file, "--out", str(tmp_path / "out"), "--targets", "nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "Unknown target 'nowhere'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_failed_run_sets_the_exit_code(file, tmp_path):
    """A broken model file of one run: it is reported, the other is there."""
    out = tmp_path / "out"
    quick = [f"--set={k}" for k in ("max_iter=3", "batch_size=8", "train.num_steps=2", "train.chains=4")]
    arguments = ("bench", file, "--out", str(out), "--adapters", "ebtsa:num_steps=2", *quick)
    assert sourceward(*arguments).returncode == 0
    broken = next((out / "models").glob("f-without-1*")) / "model.safetensors"
    broken.write_bytes(b"broken")
    for run in (out / "runs").iterdir():
        run.unlink()
    done = sourceward(*arguments, "--json")
    assert done.returncode == 3
    results = json.loads(done.stdout)
    assert {run["target"] for run in results["failed"]} == {"1"}
    assert {run["target"] for run in results["runs"]} == {"0"}
    assert "is damaged" in results["failed"][0]["reason"]


def test_version():
    done = sourceward("--version")
    assert (done.returncode, done.stdout.strip()) == (0, "0.1.0")


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("--out=/a/b", "--out=b"),
        ("pacs:/a/b.tar", "pacs:b.tar"),
        ("results/x", "results/x"),
        ("../data/x.npz", "../data/x.npz"),
    ],
)
def test_absolute_paths_are_not_recorded(typed, kept):
    assert command(["python", typed]) == f"sourceward {kept}"
