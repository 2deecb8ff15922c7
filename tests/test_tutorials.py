"""Every tutorial and example runs as it stands, and a notebook holds the code of its tutorial."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from sourceward.bench.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_runs(tutorial: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runpy.run_path(str(tutorial))
    assert capsys.readouterr().out.count("\n") >= 3


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path):
    """In a process of its own: `import skada` changes scikit-learn's configuration."""
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    command = [sys.executable, str(example)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "expected gain: " in ran.stdout


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_notebook_has_the_code_of_the_tutorial(tutorial: Path):
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    notebook = json.loads(generate["as_notebook"](tutorial.read_text()))
    assert (notebook["nbformat"], notebook["cells"][0]["cell_type"]) == (4, "markdown")
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    lines = [line for line in tutorial.read_text().splitlines() if line and not line.startswith("#")]
    assert [line for part in code for line in part.splitlines() if line and not line.startswith("#")] == lines


def test_the_script_of_the_paper_shares_models(tmp_path: Path):
    """Its commands are taken down by a stand-in for `sourceward`."""
    stand_in = tmp_path / "sourceward"
    stand_in.write_text('#!/bin/sh\necho "$@" >> commands\n')
    stand_in.chmod(0o755)
    script, own = ROOT / "examples" / "paper_pacs.sh", ["--set", "max_iter=3"]
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", str(script), "photos", "out", *own], cwd=tmp_path, env=environment, check=True)
    commands = [line.split() for line in (tmp_path / "commands").read_text().splitlines()]
    wanted = {"ablation", "steps", "per-source", "aggregation", "latent", "maps", "trajectories"}
    assert wanted <= {name for command in commands for name in command[1].split(",")} <= set(EXPERIMENTS)
    assert {command[command.index("--models") + 1] for command in commands} == {"out/models"}
    assert all(command[-2:] == own and command[0] == "reproduce" for command in commands)
    folders = [command[command.index("--out") + 1] for command in commands if "," not in command[1]]
    assert len(set(folders)) == len(folders)
