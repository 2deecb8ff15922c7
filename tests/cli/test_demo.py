import json
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from sourceward._util.errors import InputError
from sourceward.cli.demo import demo


@pytest.fixture(scope="module")
def run():
    app = typer.Typer()
    app.command()(demo)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    """One quick demo from end to end."""
    out = tmp_path_factory.mktemp("demo")
    figure = out / "figure.png"
    result = run("--quick", "--json", "--out", out, "--figure", figure)
    assert result.exit_code == 0, result.output
    return out, result


def test_json_is_all_there_is_on_standard_output_and_is_what_was_written(written):
    out, result = written
    assert json.loads(result.stdout) == json.loads((out / "results.json").read_text())


def test_results_hold_what_a_reader_needs_to_repeat_them(written):
    results = json.loads(written[1].stdout)
    assert {"command", "seed", "settings", "seconds", "versions", "headline", "verdicts"} < set(results)
    assert {"python", "torch", "numpy", "sourceward", "scikit-learn", "machine"} <= set(results["versions"])
    assert list(results["deployments"]) == ["angle", "writers"]
    for own in results["deployments"].values():
        assert {"accuracy", "accuracy_low", "accuracy_high", "gain", "low", "high"} < set(own["expected"])
        assert list(own["measured"])[:2] == ["default", "no adaptation"]
        assert "paper: 20 Langevin steps" in own["measured"]


def test_the_page_is_whole_and_says_the_headline_first(written):
    out, result = written
    page = (out / "report.html").read_text()
    results = json.loads(result.stdout)
    assert page.index(results["headline"]) < page.index("<h2>")
    assert page.rstrip().endswith("</html>")
    assert page.count("<svg") == 2
    assert (out / "figure.png").stat().st_size < 150_000


def test_the_page_loads_nothing_from_anywhere(written):
    page = (written[0] / "report.html").read_text()
    loads = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)|url\(([^)]*)\)|@import""", page)
    assert all(a.startswith(("data:", "#")) or b.startswith("#") for a, b in loads)
    assert "<script" not in page
    assert "http:" not in page
    assert "https:" not in page


def test_nothing_else_is_left_in_the_folder(written):
    assert sorted(path.name for path in written[0].iterdir()) == [
        "figure.png",
        "report.html",
        "results.json",
    ]


@pytest.mark.parametrize("wrong", [["--seed", "-1"], ["--out", "{file}/inside"], ["--out", "{file}"]])
def test_bad_input_is_refused_before_anything_is_written(run, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    result = run("--quick", *(argument.format(file=tmp_path / "file") for argument in wrong))
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith("Expected `--")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_shell_sees_one_line_and_exit_code_two(tmp_path):
    command = [sys.executable, "-c", "from sourceward.cli import main; main()", "demo", "--seed", "-3"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("sourceward: Expected `--seed` to be 0 or more, but got -3.")
    assert result.stderr.count("\n") == 1


def test_the_expectation_comes_before_the_truth(run, tmp_path):
    result = run("--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    for target in ("Target 60°", "Target writers E"):
        assert text.count("Expected accuracy", 0, text.index(target)) == 1 + ("writers" in target)
