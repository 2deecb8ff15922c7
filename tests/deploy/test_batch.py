"""Parquet and image folders to Parquet: resumed after a kill, on several machines, on a Ray cluster."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.cli.main import build_app
from sourceward.deploy.batch import predict_shards
from sourceward.deploy.shards import Shard, Unreadable, find_shards, part_of
from tests.tiny_runs import image_folder, tiny_features

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install sourceward[data])")
from pyarrow import parquet  # noqa: E402


def feature_files(folder: Path, files: int = 4, rows: int = 50) -> Path:
    """Parquet files of features, in row groups of 20; one row of each is NaN, one missing."""
    rng, items = np.random.default_rng(0), tiny_features().items
    for number in range(files):
        features = list(items[rng.integers(len(items), size=rows)])
        features[3], features[5] = np.full(5, np.nan), None
        ids = pa.array(np.arange(rows) + rows * number)
        path = folder / f"day={number % 2}" / f"part-{number // 2}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({"embedding": pa.array(features, pa.list_(pa.float32())), "id": ids, "label": ids})
        parquet.write_table(table, path, row_group_size=20)
    return folder


def contents(folder: Path) -> dict:
    return {str(p.relative_to(folder)): parquet.read_table(p) for p in sorted(folder.rglob("*.parquet"))}


def same_files(one: Path, other: Path) -> bool:
    files = [
        {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.parquet")} for folder in (one, other)
    ]
    return files[0] == files[1]


def command(*arguments):
    return CliRunner().invoke(build_app(), ["predict", *map(str, arguments)])


def test_all_probabilities_on_request(feature_run, tmp_path):
    data, out = feature_files(tmp_path / "in", files=1), tmp_path / "out"
    result = command(feature_run, data, "--out", out, "--probabilities", "--device", "cpu")
    assert result.exit_code == 0, result.output
    (table,) = contents(out).values()
    found = np.column_stack([table[f"probability_{name}"] for name in sw.load(feature_run).classes])
    finite = np.isfinite(found).all(1)
    assert list(np.flatnonzero(~finite)) == [3, 5]
    np.testing.assert_allclose(found[finite].max(1), np.array(table["probability"])[finite], rtol=1e-6)


def test_parquet_to_parquet_keeps_columns_and_says_what_the_model_says(feature_run, tmp_path):
    data, out = feature_files(tmp_path / "in"), tmp_path / "out"
    result = command(feature_run, data, "--out", out, "--keep", "id,label=truth", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "Predicted 200 rows in 4 files, 8 rows unreadable" in result.stderr
    found = contents(out)
    assert list(found) == [f"day={d}/part-{p}.parquet" for d in (0, 1) for p in (0, 1)]
    table = found["day=1/part-0.parquet"]
    assert table.column_names[:4] == ["id", "truth", "label", "probability"]
    assert table["id"].to_pylist() == list(range(50, 100))
    source = parquet.read_table(data / "day=1" / "part-0.parquet")
    rows = [
        r for r, v in enumerate(source["embedding"].to_pylist()) if v is not None and np.isfinite(v).all()
    ]
    features = np.array([source["embedding"][r].as_py() for r in rows], dtype=np.float32)
    expected = sw.load(feature_run, "cpu").predict(features)
    assert [table["label"][r].as_py() for r in rows] == [p.label for p in expected]
    assert [table["reason"][r].as_py() for r in (3, 5)] == ["NaN or infinity", "missing value"]
    # once more: nothing to do; another model or other options: refused, nothing overwritten
    assert (
        "4 files were complete" in command(feature_run, data, "--out", out, "--keep", "id,label=truth").stderr
    )
    other = command(feature_run, data, "--out", out, "--keep", "id,label=truth", "--num-steps", "0")
    assert isinstance(other.exception, InputError)
    assert "holds predictions of something else (different: num_steps)" in str(other.exception)
    assert contents(out) == found
    assert table["probability"].null_count == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "nothing"], "has no column 'nothing' to keep"),
        (["--keep", "label"], "--keep label=true_label"),
        (["--column", "nothing"], "has no column 'nothing'"),
        (["--shard", "3/2"], "Expected `--shard` as i/n"),
        (["--rows", "0"], "`--rows` to be 1 or more"),
        (["--engine", "rya"], "Did you mean 'ray'"),
    ],
)
def test_wrong_options_are_input_errors(feature_run, tmp_path, options, message):
    result = command(feature_run, feature_files(tmp_path / "in", 1), "--out", tmp_path / "out", *options)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert not list((tmp_path / "out").glob("**/*.parquet"))


def test_options_of_a_folder_are_refused_for_a_file(feature_run, tmp_path):
    result = command(feature_run, tmp_path, "--out", tmp_path / "p.csv", "--shard", "1/2")
    assert "Expected a folder as `--out` beside `--shard`" in str(result.exception)


def test_a_broken_file_does_not_stop_the_others(feature_run, tmp_path):
    data, out = feature_files(tmp_path / "in"), tmp_path / "out"
    (data / "day=0" / "part-0.parquet").write_bytes(b"PAR1 no PAR1")
    result = command(feature_run, data, "--out", out)
    assert "1 inputs could not be predicted" in str(result.exception)
    assert "part-0.parquet' cannot be read as Parquet" in str(result.exception)
    assert len(contents(out)) == 3


def test_large_files_are_split_between_row_groups(feature_run, tmp_path):
    data = feature_files(tmp_path / "in", 2)
    names = [shard.out for shard in find_shards([data], 40)]
    assert names == [f"day={d}/part-0-0000{i}-of-00002.parquet" for d in (0, 1) for i in (0, 1)]
    whole = predict_shards(feature_run, [data], tmp_path / "whole", device="cpu")
    split = predict_shards(feature_run, [data], tmp_path / "split", rows=40, device="cpu")
    assert (whole.shards, split.shards, whole.rows) == (2, 4, split.rows)
    whole_rows, split_rows = (pa.concat_tables(contents(tmp_path / n).values()) for n in ("whole", "split"))
    assert whole_rows.drop(["reason"]).to_pandas().equals(split_rows.drop(["reason"]).to_pandas())


def test_machines_share_the_shards(feature_run, tmp_path):
    data = feature_files(tmp_path / "in", 5)
    shards = list(find_shards([data], 100))
    parts = [list(part_of(shards, i, 3)) for i in (1, 2, 3)]
    assert sorted(shard.out for part in parts for shard in part) == sorted(shard.out for shard in shards)
    for i in (1, 2, 3):
        assert command(feature_run, data, "--out", tmp_path / "out", "--shard", f"{i}/3", "-q").exit_code == 0
    predict_shards(feature_run, [data], tmp_path / "one", device="cpu")
    assert same_files(tmp_path / "out", tmp_path / "one")


def test_folders_of_images_in_shards(tiny_run, tmp_path):
    folder = image_folder(tmp_path / "images")
    (folder / "c" / "x" / "0.png").write_bytes(b"no image")
    (folder / "notes.txt").write_text("no image")
    done = predict_shards(tiny_run, [folder], tmp_path / "out", rows=20, device="cpu")
    assert (done.shards, done.rows, done.unreadable) == (3, 54, 1)
    table = pa.concat_tables(contents(tmp_path / "out").values())
    paths = sorted(map(str, folder.rglob("*.png")))
    assert table["input"].to_pylist() == paths
    good = [path for path in paths if not path.endswith("c/x/0.png")]
    expected = dict(zip(good, (p.label for p in sw.load(tiny_run, "cpu").predict(good))))
    assert table["label"].to_pylist() == [expected.get(path, "") for path in paths]
    (refused,) = predict_shards(tiny_run, [folder], tmp_path / "kept", keep=["id"], device="cpu").failed
    assert "Image files have no columns to keep" in refused["reason"]
    # paths in a Parquet file are relative to it, bytes are bytes
    column = pa.table({"path": [os.path.relpath(path, tmp_path) for path in paths[:3]]})
    parquet.write_table(column, tmp_path / "list.parquet")
    parquet.write_table(
        pa.table({"image": [Path(p).read_bytes() for p in paths[:3]]}), tmp_path / "b.parquet"
    )
    for name in ("list", "b"):
        predict_shards(tiny_run, [tmp_path / f"{name}.parquet"], tmp_path / name, device="cpu")
        assert contents(tmp_path / name)[f"{name}.parquet"]["label"].equals(table["label"][:3])


def test_links_hidden_files_and_what_is_no_input(tmp_path):
    folder = image_folder(tmp_path / "images")
    (folder / "a" / "again").symlink_to(folder)
    (folder / "a" / ".hidden.png").write_bytes(b"")
    (shard,) = find_shards([folder], 100)
    assert isinstance(shard, Shard)
    assert len(shard.images) == 54
    (tmp_path / "x.npy").write_bytes(b"")
    with pytest.raises(InputError, match=r"--out predictions\.csv"):
        list(find_shards([tmp_path / "x.npy"], 10))
    with pytest.raises(InputError, match="No such file"):
        list(find_shards([tmp_path / "no*.parquet"], 10))
    (tmp_path / "x.parquet").write_bytes(b"")
    assert isinstance(next(find_shards([tmp_path / "x.parquet"], 10)), Unreadable)


SLOW = """
import sys, time, sourceward.deploy.predictor as p
call = p.Predictor.__call__
def slow(self, batch):
    time.sleep(0.3)
    return call(self, batch)
p.Predictor.__call__ = slow
from sourceward.cli import main
main()
"""


def test_a_kill_loses_at_most_one_shard_and_leaves_nothing_half_written(feature_run, tmp_path):
    data, out = feature_files(tmp_path / "in", 6), tmp_path / "out"
    arguments = ["predict", str(feature_run), str(data), "--out", str(out), "--device", "cpu", "--keep", "id"]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *arguments], stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 60
    while len(contents(out)) < 3 and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    assert 3 <= len(before) < 6
    done = predict_shards(feature_run, [data], out, keep=["id"], device="cpu")
    assert (done.skipped, done.shards) == (len(before), 6 - len(before))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    predict_shards(feature_run, [data], tmp_path / "whole", keep=["id"], device="cpu")
    assert same_files(out, tmp_path / "whole")
    assert not [path for path in out.rglob(".*") if path.is_file()]
