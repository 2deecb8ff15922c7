"""Every tutorial and example runs as it stands, and a notebook holds the code of its tutorial."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

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
