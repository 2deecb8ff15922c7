"""Controls with their own seed, and methods that are evaluated on some rows."""

import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.adaptation import ADAPTERS
from sourceward.adaptation.base import adapter_traits
from sourceward.bench.protocol.methods import Method, parse_methods
from sourceward.bench.protocol.plan import Plan, bench
from sourceward.bench.protocol.training import Training
from tests.bench.protocol.test_plan import QUICK, feature_file
from tests.tiny_runs import FINETUNE, TINY, image_folder


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("methods")
    methods = parse_methods(["linear", "single_sample", "t3a", "t3a:rows=9", "t3a:rows=999"])
    plan = Plan((feature_file(folder / "f.npz"),), methods, ("a",), (0, 1), training=Training(QUICK, "cpu"))
    return bench(plan, folder / "out")


def test_every_seed_has_its_own_single_sample_and_the_same_linear_control(done):
    first, second = (run["methods"] for run in done["runs"])
    assert first["single_sample"]["log_loss"] != second["single_sample"]["log_loss"]
    assert first["linear"]["log_loss"] == second["linear"]["log_loss"]


def test_a_part_of_the_rows_is_compared_on_those_rows(done):
    rows = {row["method"]: row for row in done["table"]}
    assert rows["t3a:rows=9"]["label"] == "t3a, on 9 rows of each target"
    for run in done["runs"]:
        part = run["methods"]["t3a:rows=9"]
        assert part["rows"] == 9
        assert np.sum(part["confusion"]) == 9
        assert part["saved"] + part["lost"] <= 9
        assert part["gain"] == pytest.approx((part["saved"] - part["lost"]) / 9)
        assert part["saved"] + part["lost"] <= round(9 * part["changed"]) <= 9
        assert run["methods"]["none"]["changed"] == 0
        whole = run["methods"]["t3a:rows=999"]
        assert "rows" not in whole
        assert whole["accuracy"] == run["methods"]["t3a"]["accuracy"]


def test_a_refusal_names_an_adapter_as_it_is_typed(tmp_path):
    names = [name for name in ADAPTERS if adapter_traits(name).reads == "inputs"]
    file = feature_file(tmp_path / "f.npz")
    plan = Plan((file,), parse_methods(names), ("a",), training=Training(QUICK, "cpu"))
    reasons = {run["method"]: run["reason"] for run in bench(plan, tmp_path / "out")["failed"]}
    assert {*reasons} == {*names}
    assert all(f"{name} adapts a backbone" in reason for name, reason in reasons.items() if name != "tta")


@pytest.mark.parametrize("selection", ["oracle", "source"])
def test_a_part_of_the_rows_is_no_candidate(selection, tmp_path):
    """One row alone is answered with 0 or 100 %: no score to hold against that of all rows."""
    plan = Plan(
        (feature_file(tmp_path / "f.npz"),),
        parse_methods(["t3a:keep=1", "t3a:keep=20", "t3a:keep=2:rows=1", "t3a:keep=3:rows=1"]),
        ("a",),
        (0,),
        selection,
        Training(QUICK, "cpu"),
    )
    rows = [row for row in bench(plan, tmp_path / "out")["table"] if "chosen" in row]
    (row,) = rows
    assert row["label"].endswith("among those without rows=")
    assert set(row["chosen"].values()) <= {"t3a:keep=1", "t3a:keep=20"}


@pytest.mark.parametrize("text", ["t3a:rows=0", "t3a:rows=many", "linear:rows=5", "none:rows=5"])
def test_bad_rows(text):
    with pytest.raises(InputError, match=r"1 or more|takes no options"):
        parse_methods([text])


def test_rows_are_no_option_of_the_adapter_itself():
    assert Method("t3a", (("keep", 3), ("rows", 9))).own == {"keep": 3}


def test_controls_read_the_features_of_a_trained_backbone(tmp_path):
    folder = image_folder(tmp_path / "images")
    training = Training({**TINY, **FINETUNE, "image_size": 16}, "cpu", backbone="tiny:conv", weights=None)
    methods = parse_methods(["linear", "single_sample", "tent:batch_size=4:rows=8"])
    results = bench(Plan((str(folder),), methods, ("c",), training=training), tmp_path / "out")
    assert not results["failed"]
    assert {row["method"] for row in results["table"]} >= {"linear", "single_sample"}
    run = results["runs"][0]
    assert run["methods"]["linear"]["ms_per_sample"] > 0
    assert run["cost"]["finetune"]["images_per_second"] > 0
    predict = run["cost"]["predict"]
    assert (predict["samples"], predict["num_steps"]) == (48, 20)
    assert min(predict["samples_per_second"], predict["peak_memory_mb"]) > 0
    assert "validation" not in run["methods"]["tent:batch_size=4:rows=8"]
