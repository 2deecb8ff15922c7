"""Folders from anybody: runs that go on, results of a report, exports, states of streams, drift."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import sourceward as sw
from sourceward import InputError
from sourceward._util.storage import append_text, load_tensors, save_tensors
from sourceward.deploy.batch import predict_shards
from sourceward.deploy.export import check_path
from sourceward.deploy.monitor import measure_drift
from sourceward.model.predicting import predict_files
from sourceward.report.results import report_html
from sourceward.training.finetune import FineTuner
from tests.tiny_runs import fit_tiny, four_domains, four_features, kill_at, weights_of

X = four_features().items


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run"
    fit_tiny(four_features(), folder, target="d", settings={"num_steps": "auto"})
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A fit that was killed in its fine-tuning, and the one that was not."""
    folder = tmp_path_factory.mktemp("hostile")
    fit_tiny(four_domains(), folder / "whole", target="d")
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, 8, FineTuner)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(four_domains(), folder / "half", target="d")
    return folder


def pipe(file):
    file.unlink(missing_ok=True)
    os.mkfifo(file)


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "checkpoint.safetensors"])
def test_a_run_that_goes_on_waits_for_no_pipe(half, tmp_path, name):
    shutil.copytree(half / "half", tmp_path / "run")
    pipe(tmp_path / "run" / name)
    with pytest.raises(InputError, match=r"pipe|is damaged|no regular file"):
        fit_tiny(four_domains(), tmp_path / "run", target="d")


@pytest.mark.parametrize(
    "content", [b"garbage}\n", b'{"stage": "finetune"}\n', b'{"iteration": "a"}\n[1]\n3\n', b"\xff\xfe}\n"]
)
def test_torn_metrics_are_dropped_and_the_run_goes_on_to_the_same_bits(half, tmp_path, content):
    shutil.copytree(half / "half", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(content)
    fit_tiny(four_domains(), tmp_path / "run", target="d")
    assert weights_of(tmp_path / "run") == weights_of(half / "whole")


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "\0"])
def test_a_configuration_that_is_none(half, tmp_path, content):
    shutil.copytree(half / "half", tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(content)
    with pytest.raises(InputError):
        fit_tiny(four_domains(), tmp_path / "run", target="d")


CHECKPOINTS = {
    "no iteration": lambda state, meta: meta.pop("iteration"),
    "text": lambda state, meta: meta.update(iteration="x"),
    "later than the end": lambda state, meta: meta.update(iteration=10**20),
    "no best": lambda state, meta: meta.update(best=None),
    "no tensor": lambda state, meta: state.pop(next(iter(state))),
    "half an optimizer": lambda state, meta: state.pop(next(k for k in state if k.startswith("optimizer."))),
    "another shape": lambda state, meta: state.update({next(iter(state)): torch.zeros(1)}),
}


@pytest.mark.parametrize("change", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_checkpoint_that_does_not_fit_names_its_remedy(half, tmp_path, change):
    shutil.copytree(half / "half", tmp_path / "run")
    file = tmp_path / "run" / "checkpoint.safetensors"
    state, meta = load_tensors(file)
    change(state, meta)
    save_tensors(file, state, meta)
    with pytest.raises(InputError, match=r"does not fit this training .* Remove it to start") as caught:
        fit_tiny(four_domains(), tmp_path / "run", target="d")
    assert "\n" not in str(caught.value)


def test_lines_are_added_to_regular_files_only(tmp_path):
    append_text(tmp_path / "a", "1\n")
    append_text(tmp_path / "a", "2\n")
    assert (tmp_path / "a").read_text() == "1\n2\n"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for name in ("pipe", "link", ""):
        with pytest.raises(InputError, match="Expected a file that can be written"):
            append_text(tmp_path / name, "x")


STATES = {
    "whole numbers": lambda state, meta: state.update(recent=state["recent"].int()),
    "half precision": lambda state, meta: state.update(mean=state["mean"].bfloat16()),
    "NaN": lambda state, meta: state.update(answer=state["answer"] * float("nan")),
    "shares above 1": lambda state, meta: state.update(answer=state["answer"] + 5),
    "shares of nothing": lambda state, meta: state.update(answer=torch.zeros_like(state["answer"])),
    "more samples than there are": lambda state, meta: meta.update(held=len(state["norm"])),
    "negative shares": lambda state, meta: state.update(probability=-state["probability"] - 1),
    "long features": lambda state, meta: state.update(feature=state["feature"] + 1e30),
    "no array": lambda state, meta: state.pop("age"),
    "a huge count": lambda state, meta: meta.update(new=10**30),
    "a flag as count": lambda state, meta: meta.update(held=True),
}


@pytest.mark.parametrize("change", STATES.values(), ids=STATES)
def test_states_of_streams(run, tmp_path, change):
    """Without the checksum, as somebody would write one who knows of it."""
    stream = sw.load(run, "cpu").stream()
    stream.predict(X)
    stream.save(tmp_path / "state")
    state, meta = load_tensors(tmp_path / "state")
    change(state, meta)
    save_file(state, tmp_path / "odd", metadata={"sourceward": json.dumps(meta)})
    with pytest.raises(InputError, match="is damaged, or was written by another version"):
        sw.load(run, "cpu").stream().load(tmp_path / "odd")


@pytest.fixture
def predicted(run, tmp_path):
    np.save(tmp_path / "x.npy", np.tile(X, (2, 1)))
    predict_files(sw.load(run, "cpu"), [tmp_path / "x.npy"], tmp_path / "p.csv")
    return tmp_path / "p.csv"


def test_drift_of_cells_that_are_no_numbers(run, predicted):
    lines = predicted.read_text().splitlines()
    first = lines[1].split(",")
    for cell in ("abc", "-", "0x10"):
        row = ",".join([first[0], first[1], cell, *first[3:]])
        predicted.write_text("\n".join([lines[0], row, *lines[2:]]))
        with pytest.raises(InputError, match="Expected numbers in column 'probability'"):
            measure_drift(run, [predicted])


def test_drift_of_columns_that_are_no_numbers(run, predicted, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    import csv

    rows = list(csv.DictReader(predicted.read_text().splitlines()))
    plain = {name: [row[name] for row in rows] for name in rows[0]}
    count = len(rows)
    late = arrow.array([2**60] * count, arrow.timestamp("ms"))
    for column in (["a"] * count, [[1.0]] * count, [{"a": 1}] * count, [b"\xff"] * count, late):
        parquet.write_table(arrow.table({**plain, "probability": column}), tmp_path / "p.parquet")
        with pytest.raises(InputError):
            measure_drift(run, [tmp_path / "p.parquet"])


def test_parquet_columns_that_python_cannot_hold(run, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    late = arrow.array([[2**60] * 5] * 2, arrow.list_(arrow.timestamp("ms")))
    words = arrow.Array.from_buffers(
        arrow.string(), 2, [None, arrow.py_buffer(np.array([0, 1, 2], "<i4")), arrow.py_buffer(b"\xff\xfe")]
    )
    for number, column in enumerate((late, words)):
        parquet.write_table(arrow.table({"features": column}), tmp_path / f"{number}.parquet")
        done = predict_shards(run, [tmp_path / f"{number}.parquet"], tmp_path / "out", column="features")
        assert "cannot be read as Parquet" in done.failed[0]["reason"]


@pytest.mark.parametrize("key", [b"no json", b"[]", b"3", b"[" * 100_000])
def test_outputs_that_say_something_odd_of_themselves(run, tmp_path, key):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "out").mkdir()
    parquet.write_table(arrow.table({"features": X.tolist()}), tmp_path / "x.parquet")
    other = arrow.table({"a": [1]}).replace_schema_metadata({b"sourceward": key})
    parquet.write_table(other, tmp_path / "out" / "x.parquet")
    done = predict_shards(run, [tmp_path / "x.parquet"], tmp_path / "out")
    assert "holds predictions of something else" in done.failed[0]["reason"]


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_an_export_replaces_regular_files_only(tmp_path, suffix):
    os.mkfifo(tmp_path / f"a{suffix}")
    (tmp_path / f"b{suffix}").mkdir()
    (tmp_path / f"c{suffix}").symlink_to(tmp_path / f"a{suffix}")
    os.mkfifo(tmp_path / "d.preprocess.json")
    for name in "abcd":
        with pytest.raises(InputError, match="Expected a file that can be written"):
            check_path(tmp_path / f"{name}{suffix}")


RESULTS = {
    "nested": "[" * 100_000,
    "no tables": '{"kind": "experiment"}',
    "no rows": '{"kind": "bench", "runs": 3, "table": [{}]}',
    "grid": '{"kind": "grid"}',
    "text": '{"kind": "experiment", "tables": "x", "figures": 3}',
    "not UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("content", RESULTS.values(), ids=RESULTS)
def test_reports_of_damaged_results(tmp_path, content):
    file = tmp_path / "results.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match="damaged"):
        report_html(tmp_path)


def test_a_report_reads_no_file_outside_of_its_folder(tmp_path):
    """And no script of a figure runs in the page."""
    (tmp_path / "secret.svg").write_text("<svg>secret</svg>")
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "own.svg").write_text("<svg>own<script>alert(1)</script></svg>")
    results = {"tables": [], "notes": [], "seeds": [], "settings": {}, "versions": {}}
    results |= {"kind": "experiment", "about": "it", "experiment": "e", "command": "c", "numbers": {}}
    results["figures"] = [{"file": name, "caption": ""} for name in ("../secret.svg", "own.svg")]
    (folder / "results.json").write_text(json.dumps(results))
    _, html = report_html(folder)
    assert "own" in html
    assert "secret" not in html
    assert "default-src 'none'" in html, "the page forbids scripts"


def test_targets_are_refused_before_the_work(run, tmp_path):
    """`predict --state`, `drift --out` and `--report`, `export --timings`, `report --out`, `save`: a pipe."""
    os.mkfifo(tmp_path / "pipe")
    np.save(tmp_path / "x.npy", X)
    inputs, out, named = str(tmp_path / "x.npy"), str(tmp_path / "p.csv"), str(tmp_path / "pipe")
    commands = [
        ["predict", run, inputs, "--out", out, "--allow", "stream", "--state", named],
        ["drift", run, inputs, "--out", named],
        ["drift", run, inputs, "--report", named],
        ["export", run, "--to", str(tmp_path / "a.pt2"), "--timings", named],
        ["report", run, "--out", named],
    ]
    with pytest.raises(InputError, match="it is no regular file"):
        sw.load(run, "cpu").adapter.save(named)
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "sourceward", *map(str, command)],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "it is no regular file" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "x.npy"]
