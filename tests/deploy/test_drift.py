"""The test of drift on samples whose distribution is known, and the command on real predictions."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.cli.main import build_app
from sourceward.deploy.drift import Reference
from tests.tiny_runs import TINY

MEANS = np.array([0.0, 2.0, 4.0])


def draw(rng, rows, shares=(1 / 3, 1 / 3, 1 / 3), shift=0.0):
    """Two statistics of a mixture of three sources."""
    source = rng.choice(3, size=rows, p=shares)
    noise = rng.normal(size=(rows, 2))
    return np.column_stack([MEANS[source], -MEANS[source]]) + noise + shift


def reference(rng, rows=200, seed=0):
    return Reference([draw(rng, rows, np.eye(3)[number]) for number in range(3)], seed=seed)


@pytest.mark.parametrize("shares", [(1 / 3, 1 / 3, 1 / 3), (1, 0, 0), (0.1, 0, 0.9)])
def test_five_per_cent_alarm_without_shift_whatever_the_mixture(shares):
    rng = np.random.default_rng(0)
    alarms = [
        found.test(draw(rng, 100, shares)).alarm
        for number in range(12)
        for found in [reference(rng, seed=number)]
        for _ in range(5)
    ]
    # 60 windows at 5 %: 3 expected; 9 or more have a probability of 0.3 %
    assert sum(alarms) <= 8


def test_a_shift_alarms_and_shares_are_recovered():
    rng = np.random.default_rng(1)
    own = reference(rng, 400)
    np.testing.assert_allclose(own.test(draw(rng, 2000, (0.2, 0, 0.8))).shares, (0.2, 0, 0.8), atol=0.06)
    shifted = [own.test(draw(rng, 300, shift=1.0)) for _ in range(5)]
    assert all(found.alarm and found.p_value < 0.05 for found in shifted)
    assert own.test(np.full((50, 2), 2.0)).alarm  # all values are one
    again = reference(np.random.default_rng(1), 400)
    window = draw(np.random.default_rng(2), 80)
    assert own.test(window).p_value == again.test(window).p_value


@pytest.fixture(scope="module")
def features():
    """Three domains that differ, and labels."""
    rng = np.random.default_rng(0)
    label, domain = np.arange(900) % 3, np.arange(900) // 300
    X = 3 * rng.normal(size=(3, 6))[label] + 2 * rng.normal(size=(3, 6))[domain] + rng.normal(size=(900, 6))
    return X.astype(np.float32), label, domain


@pytest.fixture(scope="module")
def run(features, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift")
    X, label, domain = features
    np.savez(folder / "f.npz", features=X, label=label, domain=domain)
    sw.fit(
        folder / "f.npz", out=folder / "run", settings={**TINY, "max_iter": 60}, device="cpu", progress=False
    )
    return folder / "run"


def drift(*arguments):
    return CliRunner().invoke(build_app(), ["drift", *map(str, arguments)])


def test_fit_keeps_statistics_of_held_out_samples_and_loading_does_not_need_them(run, features, tmp_path):
    model = sw.load(run, "cpu")
    held_out = model.network.held_out
    assert held_out.shape == (90, 3 + 3)
    np.testing.assert_array_equal(np.unique(held_out[:, -1], return_counts=True)[1], [30, 30, 30])
    energy = model.adapt(features[0]).energy_before
    assert all((np.abs(energy - row[:3]).max(1) < 1e-6).any() for row in held_out.numpy())
    model.network.held_out = None
    model.save(tmp_path)
    assert "held_out" not in load_file(tmp_path / "model.safetensors")
    assert np.array_equal(
        sw.load(tmp_path, "cpu").predict_proba(features[0]), model.predict_proba(features[0])
    )
    np.save(tmp_path / "x.npy", features[0])
    assert "Fit it again" in str(drift(tmp_path, tmp_path / "x.npy").exception)


def test_the_command_on_data_and_on_predictions_of_it(run, features, tmp_path):
    X = features[0][np.random.default_rng(0).permutation(900)]
    np.save(tmp_path / "same.npy", X)
    np.save(tmp_path / "other.npy", np.concatenate([X[:400], X[:400] + 3]))
    page, file = tmp_path / "page.html", tmp_path / "drift.json"
    result = drift(run, tmp_path / "other.npy", "--window", 200, "--report", page, "--out", file)
    assert result.exit_code == 0, result.output
    assert "Drift: " in result.stdout
    found = json.loads(file.read_text())
    assert found["alarm"]
    assert [window["alarm"] for window in found["windows"]][2:] == [True, True]
    assert set(found["windows"][0]["ks"]) == {"energy_0", "energy_1", "energy_2", "confidence"}
    assert found["windows"][3]["above_99"]["all"] > found["windows"][0]["above_99"]["all"]
    assert "<svg" in page.read_text()
    assert drift(run, tmp_path / "other.npy", "--window", 200, "--fail-on", "alarm", "-q").exit_code == 3
    CliRunner().invoke(
        build_app(), ["predict", str(run), str(tmp_path / "other.npy"), "--out", str(tmp_path / "p.csv")]
    )
    again = drift(run, tmp_path / "p.csv", "--window", 200, "--json")
    assert json.loads(again.stdout) == found


def test_parquet_in_a_folder_with_bad_rows(run, features, tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install sourceward[data])")
    from pyarrow import parquet

    rows = [*features[0][:250], np.full(6, np.nan), None]
    table = pa.table({"features": pa.array([None if r is None else list(r) for r in rows])})
    parquet.write_table(table, tmp_path / "x.parquet")
    out = tmp_path / "answers"
    for options in ([], ["--num-steps", "0"]):
        done = CliRunner().invoke(
            build_app(), ["predict", str(run), str(tmp_path / "x.parquet"), "--out", str(out), "-q", *options]
        )
        assert done.exit_code == 0
        found = json.loads(drift(run, out, "--json").stdout)
        assert (found["windows"][0]["rows"], found["windows"][0]["unreadable"]) == (250, 2)
        # another number of steps than the model's own: its confidence is not comparable
        assert ("confidence" in found["statistics"]) == (not options)
        out = tmp_path / "other"
    direct = json.loads(drift(run, tmp_path / "x.parquet", "--json").stdout)
    assert direct["windows"] == json.loads(drift(run, tmp_path / "answers", "--json").stdout)["windows"]


def test_wrong_input_is_an_input_error(run, features, tmp_path, feature_run):
    np.save(tmp_path / "few.npy", features[0][:10])
    too_few = str(drift(run, tmp_path / "few.npy").exception)
    assert "20 or more predictions" in too_few
    assert str(tmp_path / "few.npy") in too_few
    assert "`--window` to be 20 or more" in str(drift(run, tmp_path / "few.npy", "--window", 5).exception)
    (tmp_path / "p.csv").write_text("input,label,probability,energy_before_a\nx,y,0.5,1\n")
    other = drift(run, tmp_path / "p.csv")
    assert isinstance(other.exception, InputError)
    assert "Were they made by another model" in str(other.exception)
