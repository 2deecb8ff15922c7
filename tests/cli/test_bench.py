"""`sourceward bench`, and the command around it."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from sourceward.bench.protocol.provenance import command
from sourceward.cli.main import build_app
from tests.helpers import make_domains
from tests.tiny_runs import FINETUNE, NAMED, TINY, image_folder, text_table


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
    assert (done.returncode, done.stdout.strip()) == (0, "0.2.0")


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


def test_training_methods_are_a_grid(tmp_path):
    folder, out = image_folder(tmp_path / "images"), tmp_path / "out"
    settings = TINY | FINETUNE | {"image_size": 16, "crossfit": 0}
    quick = ["--backbone=tiny:conv", "--weights=none", "--device=cpu", "--targets=c"]
    quick += [f"--set={name}={value}" for name, value in settings.items()]
    wanted = ["--methods=erm,mixup,swad", "--adapters=none,t3a"]
    done = sourceward("bench", str(folder), *wanted, *quick, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "mixup + t3a" in done.stderr
    assert "cost of" in done.stdout
    results = json.loads((out / "results.json").read_text())
    assert results["kind"] == "grid"
    assert [own["name"] for own in results["methods"]] == ["erm", "mixup", "swad"]
    page = sourceward("report", str(out))
    assert page.returncode == 0, page.stderr
    assert "training method" in (out / "report.html").read_text()
    text = text_table(tmp_path / "texts.csv")
    named = [f"--option={option}" for option in NAMED]
    refused = sourceward("bench", str(text), "--methods=erm,cutmix", *named, "--out", str(tmp_path / "texts"))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert "'cutmix' needs images, but the data holds texts" in refused.stderr
    assert not (tmp_path / "texts").exists()


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [
        ("speed", "--only", "--adapters"),
        ("predict", "--only", "--device"),
        ("serve", "RUN INPUT", "--only"),
        ("drift", "--backbone", "--steps"),
    ],
)
def test_commands_of_two_words_have_their_own_help(name, own, others):
    done = CliRunner().invoke(build_app(), ["bench", name, "--help"], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    assert f"bench {name} [OPTIONS]" in done.output
    assert own in done.output
    assert others not in done.output
