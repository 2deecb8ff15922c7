"""Every tutorial of the documentation runs as it stands."""

import runpy
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.py"))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_runs(tutorial: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runpy.run_path(str(tutorial))
    assert capsys.readouterr().out.count("\n") >= 3
