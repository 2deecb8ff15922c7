"""Abstention and streams from the command line, with a model of three sources."""

import csv
import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sourceward._util.errors import InputError
from sourceward.cli.evaluate import evaluate
from sourceward.cli.predict import predict
from sourceward.model import load
from tests.tiny_runs import fit_tiny, four_features

DATA = four_features()
TARGET = DATA.domain_names[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("three")
    settings = {"num_steps": "auto", "max_iter": 5}
    fit_tiny(DATA, root / "run", target=TARGET, settings=settings)
    np.save(root / "x.npy", DATA.of_domains([TARGET]).items)
    arrays = {"features": DATA.items, "label": DATA.labels, "domain": DATA.domains}
    names = {"domains": np.array(DATA.domain_names), "classes": np.array(DATA.classes)}
    np.savez(root / "data.npz", **arrays, **names)
    return root


def run(command, *arguments):
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_rows_below_the_threshold_have_no_label(folder, tmp_path):
    run(predict, folder / "run", folder / "x.npy", "--out", tmp_path / "all.csv")
    trust = np.array([float(row["trust"]) for row in rows(tmp_path / "all.csv")])
    threshold = np.sort(trust)[len(trust) // 2]
    options = "--abstain-below", threshold
    run(predict, folder / "run", folder / "x.npy", "--out", tmp_path / "some.csv", *options)
    found = rows(tmp_path / "some.csv")
    assert [row["label"] == "" for row in found] == [row["status"] == "abstained" for row in found]
    assert 0 < sum(row["status"] == "abstained" for row in found) < len(found)


def test_thresholds_come_from_held_out_sources(folder):
    model = load(folder / "run", "cpu")
    assert 0 < model.calibrate(0.9) <= model.calibrate(0.5) < 1


def test_evaluate_reports_risk_against_coverage(folder):
    shown = run(evaluate, folder / "run", folder / "data.npz")
    assert "Error of the most trusted samples" in shown
    assert "threshold of trust" in shown
    scores = json.loads(run(evaluate, folder / "run", folder / "data.npz", "--json"))["domains"][TARGET]
    assert scores["trust"]["risk"]["1"] == pytest.approx(1 - scores["adapted"])
    assert set(scores["trust"]["calibration_error"]) == {"confidence", "trust"}


@pytest.mark.parametrize("allow", ["stream", "batch"])
def test_evaluate_with_a_state(folder, allow, monkeypatch):
    # The target has 13 rows, all predicted as two of three classes: the guard would answer without state.
    monkeypatch.setattr("sourceward.adaptation.stream.BALANCE", 0.5)
    scores = json.loads(run(evaluate, folder / "run", folder / "data.npz", "--json", "--allow", allow))
    assert scores["domains"][TARGET]["status"]["adapted"] > 0


def test_the_state_of_a_stream_goes_on_in_its_file(folder, tmp_path):
    state = tmp_path / "state.safetensors"
    options = "--allow", "stream", "--state", state
    for _ in range(2):
        run(predict, folder / "run", folder / "x.npy", "--out", tmp_path / "p.csv", *options)
    samples = len(rows(tmp_path / "p.csv"))
    assert load(folder / "run", "cpu").stream().load(state).seen == 2 * samples


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--state", "s"], "--allow stream beside --state"),
        (["--abstain-below", "2"], "from 0 to 1"),
        (["--allow", "batch"], "sample or stream"),
    ],
)
def test_what_means_nothing_is_refused(folder, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        run(predict, folder / "run", folder / "x.npy", "--out", tmp_path / "p.csv", *options)
