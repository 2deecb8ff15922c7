"""`sourceward cache`: shows and clears its own files, and the cache keeps below its cap."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sourceward.cli.main import build_app
from sourceward.data.cache import cached_files, find, store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path))
    return tmp_path


def fill(folder: Path, number: int) -> np.ndarray:
    keys = np.arange(5, dtype="<u8") + 10 * number
    store(folder / "images" / "16x16", keys, np.full((5, 3, 400, 400), number, np.uint8))
    return keys


def run(*words: str) -> str:
    ran = CliRunner().invoke(build_app(), ["cache", *words])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_show_and_clear_leave_other_files_alone(folder: Path):
    fill(folder, 1)
    for other in ("images/mine.npy", "features/mine.safetensors", "notes.npy"):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_text("mine")
    assert json.loads(run("--json"))["bytes"]["images"] > 2_000_000
    assert str(folder) in run()
    assert "Deleted 2.4 MB" in run("clear")
    assert cached_files() == []
    assert len(list(folder.rglob("*mine*"))) == 2
    assert (folder / "notes.npy").exists()


def test_the_oldest_files_go_above_the_cap(folder: Path, monkeypatch):
    monkeypatch.setenv("SOURCEWARD_CACHE_GB", "0.005")
    kept = []
    for number in range(3):
        kept.append(fill(folder, number))
        for path in (folder / "images" / "16x16").iterdir():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100))
    images = folder / "images" / "16x16"
    assert find(images, kept[0]) is None
    assert find(images, kept[2]) is not None
    assert sum(stat.st_size for _, stat in cached_files()) <= 5e6
