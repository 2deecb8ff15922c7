"""`--option`: the same words for the data's reader, whichever command reads it."""

import csv
import inspect
import json
import sys
from typing import get_args

import numpy as np
import pytest

from sourceward import fit, open_dataset
from sourceward.cli import main
from sourceward.cli.options import Option
from sourceward.data.table import read_table
from tests.helpers import make_domains
from tests.tiny_runs import NAMED, TINY, fit_tiny, text_table, tiny_texts

FLAGS = [part for text in NAMED for part in ("--option", text)]
BODY = ("--target", "c", "--backbone", "tiny:text", "--weights", "none", "--freeze", "--device", "cpu")
SHORT = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]


@pytest.fixture
def run(monkeypatch, capsys):
    """run("fit", ...) -> (exit code, standard output, standard error), as the shell would see it."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["sourceward", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def features(tmp_path):
    X, y, domain = make_domains(rows=24, dim=4, classes=2)
    np.savez(tmp_path / "f.npz", features=X, label=y, domain=domain)
    return tmp_path / "f.npz"


@pytest.fixture
def table(tmp_path):
    return text_table(tmp_path / "t.csv")


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "texts"
    fit_tiny(tiny_texts(), out, freeze=True)
    return out


def test_help_names_what_a_table_takes():
    """`list datasets` covers known datasets alone."""
    text = get_args(Option)[1].help
    assert all(name in text for name in list(inspect.signature(read_table).parameters)[1:])


def test_doctor(run, table):
    code, out, err = run("doctor", table, *FLAGS, "--json")
    assert code == 0, err
    assert (json.loads(out)["domains"], json.loads(out)["classes"]) == (["a", "b", "c"], ["bad", "good"])


def test_fit_says_them_again_in_what_to_do_next(run, table, tmp_path):
    code, out, err = run("fit", table, "--out", tmp_path / "run", *BODY, *SHORT, *FLAGS)
    assert code == 0, err
    following = next(line for line in out.splitlines() if "sourceward evaluate" in line)
    assert following.endswith(
        "--option domain=hall --option label=mood --option text=2019 --option 'delimiter=;'"
    )
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["data"]["sources"] == ["a", "b"]


def test_python_takes_what_was_opened_and_it_is_the_same_run(run, table, tmp_path):
    out = tmp_path / "run"
    assert run("fit", table, "--out", out, *BODY, *SHORT, *FLAGS, "-q")[0] == 0
    before = (out / "model.safetensors").stat().st_mtime_ns
    data = open_dataset(table, domain="hall", label="mood", text="2019", delimiter=";")
    given = {"target": "c", "backbone": "tiny:text", "weights": None, "freeze": True, "device": "cpu"}
    assert fit(data, out=out, settings=TINY, **given).sources == ("a", "b")
    assert (out / "model.safetensors").stat().st_mtime_ns == before, "a finished run is loaded"


def test_evaluate(run, table, text_run):
    code, out, err = run("evaluate", text_run, table, *FLAGS, "--json", "--device", "cpu")
    assert code == 0, err
    assert json.loads(out)["domains"]["c"]["samples"] == 12


def test_predict_takes_those_of_fit(run, table, text_run, tmp_path):
    out = tmp_path / "p.csv"
    code, _, err = run("predict", text_run, table, "--out", out, *FLAGS, "--device", "cpu")
    assert code == 0, err
    with out.open(newline="") as stream:
        found = [row["label"] for row in csv.DictReader(stream)]
    assert len(found) == 36
    assert set(found) <= {"good", "bad"}
    code, _, err = run("predict", text_run, table, "--out", out, "--option", "texts=2019")
    assert (code, err.count("\n")) == (2, 1)
    assert "Unknown option 'texts'" in err


@pytest.mark.parametrize("command", ["doctor", "fit", "evaluate", "bench"])
def test_the_message_names_the_flag_and_the_flag_is_taken(command, run, tmp_path, text_run):
    table = tmp_path / "t.csv"
    table.write_text("domain,verdict,text\na,x,one\n")
    words = {"evaluate": (text_run, table)}.get(command, (table,))
    words += ("--out", tmp_path / "run") if command in ("fit", "bench") else ()
    for more, message in (
        ((), "has no label column: expected one named label, labels, class, class_name, ..., found domain, "),
        ((), "--option label=COLUMN."),
        (("--option", "label=verdicts"), "has no column 'verdicts'"),
        (("--option", "label"), "Expected --option key=value, but got 'label'"),
        (("--option", "labels=verdict"), "Unknown option 'labels' for a .csv file: it takes domain, label"),
        (("--option", "target=x"), "Unknown option 'target' for a .csv file"),
        (("--option", "spec=x"), "Unknown option 'spec' for a .csv file"),
        (("--option", "label=[1]"), "Expected option `label` to be text or none, but got [1]"),
        (("--option", "delimiter=;;"), "Expected `delimiter` to be one character, but got ';;'"),
    ):
        code, out, err = run(command, *words, *more)
        assert (code, out, err.count("\n")) == (2, "", 1), (more, err)
        assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [("bench",), ("reproduce", "steps", "--data")])
@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("--set", "random_state=3"), "use --seeds"),
        (("--set", "device=cuda"), "use --device"),
        (("--set", "checkpoint=x"), "models are stored under --out"),
        (("--seeds", "0,0"), "Expected every seed once in --seeds, but got '0,0'"),
        (("--seeds", "-1"), "Expected numbers of 0 or more in --seeds, but got '-1'"),
    ],
)
def test_what_many_trainings_set_themselves_is_refused(command, typed, message, run, tmp_path):
    code, out, err = run(*command, tmp_path / "f.npz", "--out", tmp_path / "out", *typed)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("--steps", "-1"), "Expected numbers of 0 or more in --steps, but got '-1'"),
        (("--steps", "0,x"), "Expected whole numbers or auto, separated by commas, in --steps, but got 'x'"),
        (("--adapters", "ebtsa:num_steps=x"), "Expected `num_steps` to be 0 or more, or auto, but got 'x'"),
        (("--adapters", "tent_features:batch_size=0"), "`batch_size` to be 1 or more, but got 0"),
        (("--adapters", "ebtsa:step_size=-1"), "`step_size` to be 0 or more, but got -1"),
        (("--adapters", "ebtsa:sampler=langvin"), "Did you mean 'langevin'"),
    ],
)
def test_wrong_options_are_refused_before_the_training(typed, message, run, features, tmp_path):
    code, out, err = run("bench", features, "--out", tmp_path / "out", *typed)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err
    assert not (tmp_path / "out").exists()
