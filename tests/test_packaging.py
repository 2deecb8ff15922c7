"""The wheel: built from this checkout, installed into an environment of its own, and used there."""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("build", reason="build is not installed")
pytest.importorskip("hatchling", reason="hatchling is not installed")

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    # -I in the commands below keeps PYTHONPATH out: what is imported is what is installed.
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_archives_hold_the_package_and_nothing_else(dist: Path):
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("py.typed", "bench/published.json", "report/page.html.j2"):
        assert f"sourceward/{needed}" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"sourceward"}
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        packed = {name.split("/")[1] for name in opened.getnames()}
    assert {"src", "tests", "LICENSE", "pyproject.toml"} <= packed
    assert not packed & {"results", "demo", "runs", ".venv"}


def test_the_wheel_works_in_an_environment_of_its_own(dist: Path, tmp_path: Path):
    """Dependencies come from the environment of the tests: torch is not downloaded again."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    where = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    (wheel,) = dist.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", wheel, cwd=tmp_path)
    (where / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    shown = run(
        python, "-I", "-c", "import sourceward as sw; print(sw.__file__, sw.EnergyAdapter)", cwd=tmp_path
    )
    assert shown.startswith(str(where)), shown
    command = tmp_path / "env" / "bin" / "sourceward"
    assert "doctor" in run(python, "-I", command, "--help", cwd=tmp_path)
