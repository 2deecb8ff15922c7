import io
import json

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from sourceward.cli.doctor import doctor, render
from sourceward.data import doctor as diagnose
from tests.tiny_runs import image_folder


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(doctor)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def bank(tmp_path):
    def write(num_classes=2, num_domains=2):
        rows = np.arange(4 * num_classes * num_domains)
        path = tmp_path / "bank.npz"
        features = np.random.default_rng(0).normal(size=(len(rows), 3))
        np.savez(path, features=features, label=rows % num_classes, domain=rows // num_classes % num_domains)
        return path

    return write


def test_a_table_and_what_fit_would_do(run, bank):
    result = run(bank())
    assert result.exit_code == 0, result.output
    assert "16 samples (features), 2 domains, 2 classes" in result.output
    assert "Train on 12 samples of 2 source domains" in result.output


def test_exit_two_with_the_fix(run, bank):
    result = run(bank(num_classes=1))
    assert result.exit_code == 2
    assert "Add samples of at least one other class" in result.output


def test_the_plan_for_one_source(run, bank):
    result = run(bank(num_domains=1))
    assert result.exit_code == 0, result.output
    assert "from its own features with noise" in result.output


def test_json_is_all_there_is_on_standard_output(run, bank):
    found = json.loads(run(bank(), "--json").stdout)
    assert found["domains"] == ["0", "1"]
    assert found["refusals"] == []


def test_equal_samples_are_reported(run, tmp_path):
    features = np.random.default_rng(0).normal(size=(16, 3))
    features[4], features[1] = features[0], features[12]
    np.savez(tmp_path / "b.npz", features=features, label=np.arange(16) % 2, domain=np.arange(16) // 8)
    output = run(tmp_path / "b.npz").output
    assert "warning same content under several classes" in output
    assert "0000001 = 0000012" in output
    assert "same content more than once in a class" in output
    assert "0000000 = 0000004" in output


def test_many_classes_and_domains_are_cut_short(bank):
    console = Console(width=120, record=True, file=io.StringIO())
    render(diagnose(bank(num_classes=30, num_domains=12)), console)
    assert "and 10 more classes and 4 more domains" in console.export_text()


def test_time_and_disk_are_estimated(run, tmp_path):
    root = image_folder(tmp_path / "images")
    found = json.loads(run(root, "--backbone", "tiny:conv", "--json").stdout)["estimate"]
    assert found["passes"] == 54 + 45 + 2 * 45, "all, a copy of those to train on, two for validation"
    assert found["seconds"] > 0
    assert found["cache_bytes"] > 54 * 3
    shown = run(root, "--backbone", "tiny:conv").stdout
    assert "With --freeze: 189 passes of tiny:conv" in shown
    assert "Without --freeze: roughly" in shown
    assert "passes" not in run(root, "--quick").stdout
    assert "An unknown time: timm:none cannot be loaded here" in run(root, "--backbone", "timm:none").stdout


def test_fewer_than_three_sources_are_pointed_out(run, bank):
    shown = run(bank(num_domains=2)).stdout
    assert "Estimate nothing and leave adaptation off: validation needs three sources." in shown
