import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from sourceward.cli import main
from tests.tiny_runs import four_features, image_folder, kill_at, tiny_features, weights_of

FLAGS = ["--target", "c", "--backbone", "tiny:conv", "--weights", "none", "--device", "cpu"]
SHORT = [
    "--max-iter",
    "4",
    "--batch-size",
    "4",
    "--set",
    "train.num_steps=2",
    "--set",
    "num_steps=2",
    "--set",
    "image_size=16",
]


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
def bank(tmp_path):
    data = tiny_features()
    path = tmp_path / "bank.npz"
    names = np.array(data.domain_names)[data.domains]
    np.savez(path, features=data.items, label=np.array(data.classes)[data.labels], domain=names)
    return path


def test_from_images_to_a_table_and_the_next_command(run, tmp_path):
    root = image_folder(tmp_path / "images")
    command = ("fit", root, "--out", tmp_path / "run", *FLAGS, *SHORT, "--freeze")
    code, out, err = run(*command)
    assert code == 0, err
    assert "Source validation, iteration" in out
    assert f"sourceward evaluate {tmp_path / 'run'} {root}" in out
    assert "Not estimated: the expected gain" in out
    assert "was trained already" not in out
    assert "was trained already. Next:" in " ".join(run(*command)[1].split())
    assert (tmp_path / "run/config.json").exists()


def test_a_fine_tuned_backbone_and_its_features(run, tmp_path):
    root, bank = image_folder(tmp_path / "images"), tmp_path / "bank.npz"
    stage = ("--set", "finetune.max_iter=3", "--set", "finetune.batch_size=4")
    command = ("fit", root, "--out", tmp_path / "run", *FLAGS, *SHORT, *stage, "--save-features")
    assert run(*command, tmp_path / "bank.csv")[0] == 2
    code, out, err = run(*command, bank)
    assert code == 0, err
    assert "Fine-tuned backbone: " in out
    with np.load(bank) as arrays:
        assert arrays["held_out"] == "c"
        assert set(arrays["domain"].tolist()) == {0, 1, 2}


def test_features_need_no_backbone_and_json_is_all_there_is(run, bank, tmp_path):
    command = (
        "fit",
        bank,
        "--out",
        tmp_path / "run",
        "--target",
        "c",
        *SHORT[:-2],
        "--json",
        "--device",
        "cpu",
    )
    code, out, err = run(*command)
    assert code == 0, err
    assert json.loads(out)["metrics"]["last_iteration"] == 4
    assert json.loads(run(*command)[1]) == json.loads(out), "a finished run is not trained again"


def test_config_file_then_set_then_flag(run, bank, tmp_path):
    (tmp_path / "c.json").write_text(
        '{"max_iter": 9, "kl_weight": 0.3, "train": {"num_steps": 2, "chains": 4}}'
    )
    options = (
        "--config",
        tmp_path / "c.json",
        "--set",
        "kl_weight=0.2",
        "--max-iter",
        3,
        "--json",
        "--device",
        "cpu",
    )
    code, out, err = run("fit", bank, "--out", tmp_path / "run", "--target", "c", *options)
    assert code == 0, err
    settings = json.loads(out)["training"]["settings"]
    assert (settings["max_iter"], settings["kl_weight"], settings["train"]["chains"]) == (3, 0.2, 4)


def test_bad_input_is_one_line_and_exit_code_two(run, bank, tmp_path):
    table = tmp_path / "texts.csv"
    table.write_text("text,label\nhello,x\n")
    for arguments, message in (
        ((tmp_path / "none",), "No such file or folder"),
        ((table,), "domain"),
        ((bank, "--target", "q"), "Unknown domain 'q'"),
        ((bank, "--set", "lr=1"), "Unknown setting 'lr'"),
        ((bank, "--backbone", "timm:resnet18"), "Features need no backbone"),
    ):
        code, out, err = run("fit", *arguments, "--out", tmp_path / "run")
        assert code == 2, arguments
        assert message in err
        assert err.count("\n") == 1
        assert not out
        assert not (tmp_path / "run").exists()


def test_a_run_is_a_folder(run, bank):
    for out in (bank, bank / "run"):
        code, _, err = run("fit", bank, "--out", out, "--target", "c", "--device", "cpu")
        assert code == 2
        assert err.endswith(f"'{bank}' is a file. Name an empty or new folder for the run.\n")


def test_one_huge_value_is_refused(run, bank, tmp_path):
    arrays = dict(np.load(bank))
    arrays["features"][0, 0] = 1e30
    np.savez(bank, **arrays)
    code, out, err = run("fit", bank, "--out", tmp_path / "run", "--target", "c")
    assert (code, out) == (2, "")
    assert "squares fit into float32, but the range of `features` is 1e+30. Rescale" in err
    assert not (tmp_path / "run").exists()


def test_tensorboard_on_request(run, bank, tmp_path):
    pytest.importorskip("tensorboard")
    options = ("--target", "c", *SHORT[:-2], "--tensorboard", "-q", "--device", "cpu")
    code, out, err = run("fit", bank, "--out", tmp_path / "run", *options)
    assert (code, out) == (0, ""), err
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_a_training_that_cannot_go_on_is_one_line_and_exit_code_two(run, bank, tmp_path):
    options = ("--target", "c", "--max-iter", 30, "--set", "learning_rate=1e20", "--device", "cpu")
    code, out, err = run("fit", bank, "--out", tmp_path / "run", *options, "-q")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "Lower `learning_rate`" in err
    assert not (tmp_path / "run/config.json").exists()


def test_interrupted_and_given_again_the_command_goes_on(run, bank, tmp_path, monkeypatch):
    words = ("--target", "c", "--device", "cpu", "-q", *SHORT[:-2], "--max-iter", 65)
    with monkeypatch.context() as patch:
        kill_at(patch, 62)
        assert run("fit", bank, "--out", tmp_path / "run", *words)[0] == 130
    assert run("evaluate", tmp_path / "run", bank)[0] == 2, "no model yet"
    assert run("fit", bank, "--out", tmp_path / "run", *words)[0] == 0
    assert run("fit", bank, "--out", tmp_path / "whole", *words)[0] == 0
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")


def test_the_expected_gain_is_printed(run, tmp_path):
    data, path = four_features(), tmp_path / "four.npz"
    names = np.array(data.domain_names)[data.domains]
    np.savez(path, features=data.items, label=np.array(data.classes)[data.labels], domain=names)
    words = ("--target", "d", "--max-iter", 4, "--set", "train.num_steps=2", "--device", "cpu")
    code, out, err = run("fit", path, "--out", tmp_path / "run", *words)
    assert code == 0, err
    shown = " ".join(out.split())
    assert "leave-one-domain-out validation" in shown
    assert "Not estimated" not in shown


def test_killed_by_the_system_the_command_goes_on_to_the_same_weights(run, bank, tmp_path):
    words = [str(word) for word in (*SHORT[:-2], "--target", "c", "--device", "cpu", "-q", "--max-iter", 400)]
    command = [sys.executable, "-m", "sourceward", "fit", str(bank), "--out", str(tmp_path / "run"), *words]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not (tmp_path / "run/heads.safetensors").exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert not (tmp_path / "run/config.json").exists()
    for name in ("run", "whole"):
        assert run("fit", bank, "--out", tmp_path / name, *words)[0] == 0
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }
