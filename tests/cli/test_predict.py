import csv
import json
import tarfile

import numpy as np
import pytest
import typer
from PIL import Image
from safetensors.numpy import save_file
from typer.testing import CliRunner

from sourceward._util.errors import InputError
from sourceward.adaptation.base import STATUS_TEXT
from sourceward.cli.predict import predict
from sourceward.model import load
from sourceward.model.prediction import UNREADABLE
from tests.tiny_runs import fit_tiny, image_folder, tiny_features, tiny_texts


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(predict)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def images(tmp_path):
    return image_folder(tmp_path / "images")


def rows(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_folders_globs_and_files_give_a_row_each(run, tiny_run, images, tmp_path):
    out = tmp_path / "p.csv"
    result = run(tiny_run, images / "c/x", f"{images}/c/y/[01].png", images / "c/z/0.png", "--out", out)
    assert result.exit_code == 0, result.output
    assert (result.stdout, result.stderr) == ("", f"Predicted 9 inputs; the rows are in {out}.\n")
    assert not run(tiny_run, images / "c/z/0.png", "--out", tmp_path / "one.csv", "-q").output
    found = rows(out)
    assert [row["input"].split("/")[-2] for row in found] == ["x"] * 6 + ["y"] * 2 + ["z"]
    assert {row["label"] for row in found} <= {"x", "y", "z"}
    assert set(found[0]) >= {"probability", "status", "label_a", "energy_before_a", "energy_after_b"}


def test_all_probabilities_on_request(run, tiny_run, images, tmp_path):
    model, paths = load(tiny_run, "cpu"), [images / "c/x/0.png", images / "c/y/1.png"]
    expected = model.predict_proba([str(path) for path in paths])
    (images / "c/z/0.png").write_bytes(b"")
    inputs = [*paths, images / "c/z/0.png"]
    assert not run(tiny_run, *inputs, "--out", tmp_path / "p.csv", "--probabilities").exception
    *found, broken = rows(tmp_path / "p.csv")
    names = [f"probability_{name}" for name in model.classes]
    np.testing.assert_allclose([[float(row[n]) for n in names] for row in found], expected, rtol=1e-4)
    assert (broken["status"], broken[names[0]]) == (UNREADABLE, "")
    run(tiny_run, *inputs, "--out", tmp_path / "p.jsonl", "--probabilities")
    first = json.loads((tmp_path / "p.jsonl").read_text().splitlines()[0])
    assert list(first["probabilities"]) == list(model.classes)
    run(tiny_run, *inputs, "--out", tmp_path / "plain.jsonl")
    assert '"probabilities"' not in (tmp_path / "plain.jsonl").read_text()


def test_it_goes_on_past_what_cannot_be_read(run, tiny_run, images, tmp_path):
    (images / "c/x/0.png").write_bytes(b"")
    (images / "c/x/1.png").write_bytes((images / "c/x/2.png").read_bytes()[:80])
    out = tmp_path / "p.jsonl"
    result = run(tiny_run, images / "c/x", "--out", out)
    assert result.exit_code == 0
    assert "Predicted 4 inputs" in result.stderr
    assert "2 of the inputs could not be read" in result.stderr
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["status"] == "unreadable" for row in found] == [True, True] + [False] * 4
    assert "empty" in found[0]["reason"]
    assert found[2]["source_labels"].keys() == {"a", "b"}
    assert run(tiny_run, images / "c/x", "--out", tmp_path / "p.csv").exit_code == 0
    assert [row["reason"] for row in rows(tmp_path / "p.csv")] == [
        found[0]["reason"],
        found[1]["reason"],
        *[""] * 4,
    ]


def test_a_missing_input_among_several_is_a_row(run, tiny_run, images, tmp_path):
    out = tmp_path / "p.csv"
    result = run(
        tiny_run, images / "c/x/0.png", "nowhere.png", "none/*.png", images / "c/y/1.png", "--out", out
    )
    assert result.exit_code == 0, result.output
    assert "unreadable nowhere.png: no such file" in result.stderr
    assert [row["reason"] for row in rows(out)] == ["", "no such file", "no such file", ""]
    assert "None of the 2 inputs" in str(run(tiny_run, "a.png", "b.png", "--out", out).exception)


def test_a_table_of_paths(run, tiny_run, images, tmp_path):
    table = images / "list.csv"
    table.write_text("path,note\nc/x/0.png,first\nc/y/1.png,second\n,third\n")
    assert run(tiny_run, table, "--out", tmp_path / "p.csv").exit_code == 0
    assert [row["reason"] for row in rows(tmp_path / "p.csv")] == ["", "", "its path is empty"]


def test_a_tar_and_every_kind_of_image_that_fit_reads(run, tiny_run, images, tmp_path):
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(images, arcname="all")
    assert run(tiny_run, tmp_path / "all.tar", "--out", tmp_path / "t.csv").exit_code == 0
    assert run(tiny_run, images, "--out", tmp_path / "f.csv").exit_code == 0
    assert [row["label"] for row in rows(tmp_path / "t.csv")] == [
        r["label"] for r in rows(tmp_path / "f.csv")
    ]
    assert rows(tmp_path / "t.csv")[0]["input"].startswith(f"{tmp_path / 'all.tar'}:all/")
    (tmp_path / "gray").mkdir()
    Image.new("L", (16, 16)).save(tmp_path / "gray" / "0.pgm")
    assert run(tiny_run, tmp_path / "gray", "--out", tmp_path / "p.csv").exit_code == 0


def test_parquet_is_read_like_csv(run, tiny_run, images, tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    parquet.write_table(pa.table({"path": ["c/x/0.png", "c/y/1.png", None]}), images / "list.parquet")
    assert run(tiny_run, images / "list.parquet", "--out", tmp_path / "p.csv").exit_code == 0
    assert [row["status"] == UNREADABLE for row in rows(tmp_path / "p.csv")] == [False, False, True]
    parquet.write_table(pa.table({"note": ["a"]}), images / "list.parquet")
    missing = run(tiny_run, images / "list.parquet", "--out", tmp_path / "p.csv")
    assert "has no column 'path'; it has note" in str(missing.exception)


def test_texts_from_lines_and_tables(run, tmp_path):
    fit_tiny(tiny_texts(), tmp_path / "run")
    (tmp_path / "lines.txt").write_text("a great day\n\nan awful one\n")
    (tmp_path / "table.csv").write_text('id,comment\n1,"fine, really"\n2,sad\n')
    out = tmp_path / "p.csv"
    assert run(tmp_path / "run", tmp_path / "lines.txt", "--out", out).exit_code == 0
    assert [row["input"].rpartition(":")[2] for row in rows(out)] == ["1", "3"]
    result = run(tmp_path / "run", tmp_path / "table.csv", "--out", out, "--column", "comment", "--json")
    assert json.loads(result.stdout) == {"out": str(out), "predicted": 2, "unreadable": []}
    assert len(rows(out)) == 2
    (tmp_path / "tweets.csv").write_text("id,Tweet\n1,sad\n")  # found as `fit` finds it
    assert run(tmp_path / "run", tmp_path / "tweets.csv", "--out", out).exit_code == 0
    assert len(rows(out)) == 1
    missing = run(tmp_path / "run", tmp_path / "table.csv", "--out", out)
    assert "has no column 'text'; it has id, comment" in str(missing.exception)
    (tmp_path / "wide.csv").write_text("id,text\n1,sad\n", encoding="utf-16")
    wide = run(tmp_path / "run", tmp_path / "wide.csv", "--out", out)
    assert isinstance(wide.exception, InputError)
    assert "Save it as UTF-8 CSV" in str(wide.exception)


def test_features(run, tmp_path):
    data = tiny_features()
    fit_tiny(data, tmp_path / "run")
    np.save(tmp_path / "x.npy", data.items[:3])
    assert run(tmp_path / "run", tmp_path / "x.npy", "--out", tmp_path / "p.csv").exit_code == 0
    assert len(rows(tmp_path / "p.csv")) == 3
    assert run(tmp_path / "run", "no.npy", tmp_path / "x.npy", "--out", tmp_path / "p.csv").exit_code == 0
    assert [row["reason"] for row in rows(tmp_path / "p.csv")] == ["no such file", "", "", ""]
    save_file({"features": data.items[:2]}, tmp_path / "x.safetensors")
    assert run(tmp_path / "run", tmp_path / "x.safetensors", "--out", tmp_path / "p.csv").exit_code == 0
    assert len(rows(tmp_path / "p.csv")) == 2
    (tmp_path / "photo.jpg").write_bytes(b"no array")
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    np.savez(tmp_path / "own.npz", X=data.items[:2])
    assert run(tmp_path / "run", tmp_path / "own.npz", "--out", tmp_path / "p.csv").exit_code == 0
    np.savez(tmp_path / "two.npz", X=data.items[:2], embeddings=data.items[:2])
    result = run(tmp_path / "run", tmp_path / "two.npz", "--out", tmp_path / "p.csv")
    assert "has 'X' and 'embeddings', and each may be the features" in str(result.exception)
    np.savez(tmp_path / "other.npz", rows=data.items[:3])
    for name in ("photo.jpg", "words.npy", "other.npz"):
        result = run(tmp_path / "run", tmp_path / name, "--out", tmp_path / "p.csv")
        assert isinstance(result.exception, InputError)
        assert f"This model reads features, but '{tmp_path / name}' is no readable" in str(result.exception)
        assert "unsafe" not in str(result.exception)


def test_nothing_half_written(run, tiny_run, images, tmp_path, monkeypatch):
    text = tmp_path / "notes.txt"
    text.write_text("no image")
    out = tmp_path / "p.csv"
    for inputs, target, message in (
        (text, out, "None of the 1 inputs could be read as an image"),
        (images / "c", tmp_path / "p.xml", "Expected --out to end in .csv or .jsonl"),
        (tmp_path / "nowhere", out, "No such file"),
        (images / "c", "/proc/nowhere/p.csv", "Could not write"),
    ):
        result = run(tiny_run, inputs, "--out", target)
        assert isinstance(result.exception, InputError)
        assert message in str(result.exception)
    monkeypatch.setattr("sourceward.model.Model.explain", lambda *_: 1 / 0)
    run(tiny_run, images / "c", "--out", out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images", "notes.txt"]


def test_help_explains_every_status(run):
    lines = [line.strip() for line in run("--help").output.splitlines()]
    for status in (*STATUS_TEXT, UNREADABLE):
        assert any(line.startswith(f"- {status}: ") for line in lines), status


@pytest.mark.parametrize("steps", [0, 3])
def test_num_steps_means_the_same_as_in_python(run, tiny_run, images, tmp_path, steps):
    out, paths = tmp_path / "p.jsonl", sorted((images / "c/x").iterdir())
    assert run(tiny_run, *paths, "--out", out, "--num-steps", steps).exit_code == 0
    found = [json.loads(line)["probability"] for line in out.read_text().splitlines()]
    expected = load(tiny_run, "cpu").adapt(paths, num_steps=steps).probabilities.max(1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
