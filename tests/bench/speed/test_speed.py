"""`bench speed`: every section runs, ours and the naive chain agree, the file says where it comes from."""

import json
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from sourceward._util.errors import InputError
from sourceward.bench.speed.models import (
    Bare,
    make_features,
    make_images,
    make_model,
    make_network,
    make_projection,
)
from sourceward.bench.speed.prediction import _chain_call
from sourceward.bench.speed.reference import naive_chains
from sourceward.bench.speed.timing import growth, peak_memory, timed, timed_in_turn
from sourceward.cli.main import build_app
from sourceward.functional import keyed_normals, row_keys
from sourceward.nn import folded
from sourceward.samplers import StepSettings, run_chain
from sourceward.settings import TrainSettings


def test_growth_of_a_power_law():
    assert growth({1: 3.0, 10: 300.0})["exponent"] == pytest.approx(2.0)
    assert growth({1: 3.0, 10: 3.0})["per_doubling"] == pytest.approx(1.0)


def test_a_call_is_timed_at_least_three_times():
    calls = []
    found = timed(lambda: calls.append(0), torch.device("cpu"), repeats=1, seconds=0)
    assert found["repeats"] == 3
    assert len(calls) == 5  # two to warm up
    assert found["low_ms"] <= found["median_ms"] <= found["high_ms"]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_memory_is_that_of_the_call():
    large, small = (peak_memory(lambda n=n: torch.ones(n), torch.device("cpu")) for n in (2**26, 2**10))
    assert large == pytest.approx(256, rel=0.1)
    assert small < 16, "the memory of an earlier call is not counted"


def test_the_naive_chain_takes_the_same_steps():
    network, x = make_network(24, 2, torch.device("cpu")).double(), make_features(8, 24, torch.device("cpu"))
    x, keys, step = x.double(), row_keys(x), StepSettings(noise_std=0.1)
    z, fold = network.latent(x).mean, folded(network)
    start = x.expand(2, -1, -1)
    ours = run_chain("langevin", start, fold.energy, fold.energy.bias(z.expand_as(start)), step, 6, keys)
    normals = list(keyed_normals(keys, range(0, 12, 2), 24, torch.float64))
    ends, energies = naive_chains(network.energy.weights(), x, z, normals, step)
    torch.testing.assert_close(ours.feature, ends, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.energy_after, energies, rtol=1e-9, atol=1e-9)
    assert ours.steps.sum() > 0


def test_calls_in_turn_are_compared_with_the_first_of_their_round():
    order = []
    calls = {"one": lambda: order.append("one"), "two": lambda: (order.append("two"), time.sleep(0.01))}
    found = timed_in_turn(calls, torch.device("cpu"), 3)
    assert order == ["one", "two"] * 4
    assert found["one"][1] == 1
    assert found["two"][0] >= 10
    assert found["two"][1] > 1


def test_quick_runs_every_section(tmp_path):
    arguments = ["bench", "speed", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "cpu.json").read_text())
    errors = {k: v["error"] for k, v in found.items() if isinstance(v, dict) and "error" in v}
    assert not errors
    assert {"command", "seed", "versions", "plan", "seconds"} <= set(found)
    assert all(row["same_numbers"]["ok"] for row in found["chain"])
    assert {(row["components"], row["dim"]) for row in found["chain"]} == {(256, 256), (None, 512)}
    assert found["chain"][0]["components"] == found["predict"][0]["components"] == 256
    for row in found["predict"]:
        fastest = min(row["bare"]["median_ms"], row["without"]["median_ms"])
        assert row["ratio"] == pytest.approx(row["with"]["median_ms"] / fastest)
    for row in found["default"]:
        (half,) = row["cascade"]
        assert half["stopped"] == [0.5, 0.25]
        assert row["ratio_none"] == 1
        assert half["ratio"] > 0
    assert found["files"]["files"] == 6
    assert found["busy_fit"]["beside_busy_ratio"] > 0
    assert {row["axis"] for row in found["growth"]} == {"sources", "classes", "features", "rows", "copies"}
    assert all(row["ok"] for row in found["agreement"])
    assert {row["axis"] for row in found["axes"]} == {"steps", "sources", "draws"}
    assert found["image_training"]["ratio"] > 0
    page = (tmp_path / "cpu.md").read_text()
    small = next(row for row in found["default"] if row["batch"] == 4 and row["copy_size"] == [32, 32])
    (row,) = (line for line in page.splitlines() if line.startswith("| resnet18 | 32 x 32 | 4 |"))
    assert f"| {small['cascade'][0]['ratio']:.2f} |" in row
    for head in ("| default |", "| JPEG files |", "| fit of features |", "| axis | from | to |"):
        assert head in page, head


def test_some_sections_alone_have_a_file_of_their_own(tmp_path):
    arguments = ["bench", "speed", "--quick", "--device", "cpu", "--out", str(tmp_path), "--only"]
    done = CliRunner().invoke(build_app(), [*arguments, "memory,training"])
    assert done.exit_code == 0, done.output
    assert {file.stem for file in tmp_path.iterdir()} == {"cpu-memory-training"}
    found = json.loads((tmp_path / "cpu-memory-training.json").read_text())
    assert list(found["seconds"]) == ["memory", "feature_training", "image_training"]
    assert found["image_training"]["full"]["ms"] > 0
    assert "ordinary ms" in done.output


@pytest.mark.parametrize(
    ("only", "says"),
    [("trainin", "Did you mean 'training'"), ("compiled_training", "Expected `--device cuda`")],
)
def test_sections_are_checked_before_anything_is_written(only, says, tmp_path):
    out = tmp_path / "new"
    arguments = ["bench", "speed", "--quick", "--device", "cpu", "--out", str(out), "--only", only]
    done = CliRunner().invoke(build_app(), arguments)
    assert isinstance(done.exception, InputError)
    assert says in str(done.exception)
    assert not out.exists()


def test_only_is_refused_where_it_means_nothing(tmp_path):
    done = CliRunner().invoke(build_app(), ["bench", "digits", "--out", str(tmp_path), "--only", "training"])
    assert done.exit_code == 2
    assert "No such option" in done.output
    assert not [*tmp_path.iterdir()]


def test_the_chain_starts_at_the_components():
    network, wide = make_network(8, 2, torch.device("cpu")), make_features(4, 24, torch.device("cpu"))
    projection = make_projection(24, 8, torch.device("cpu"))
    ours = _chain_call(network, wide, 3, projection)()
    alone = _chain_call(network, wide @ projection, 3)()
    torch.testing.assert_close(ours.feature, alone.feature)
    assert ours.steps.sum() > 0


def test_a_model_is_measured_as_fit_builds_it():
    device = torch.device("cpu")
    model = make_model("resnet18", Bare("resnet18", device), 256, 32, 2, device)
    images = make_images(3, 32, device)
    assert model.network.dim == TrainSettings().components == 256
    assert model.adapt_images(images).features.shape == (3, 3, 256)
    assert len(model.predict(images)) == 3
