import pickle
import struct
import subprocess
import sys
from multiprocessing import Pipe

import numpy as np
import pytest
from PIL import Image

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.deploy.rows import CHUNK
from tests.tiny_runs import fit_tiny, image_folder, tiny_features, tiny_texts

RECEIVE = """
import sys
from multiprocessing.connection import Connection
assert "Predictor" in type(Connection(0, writable=False).recv()).__name__
sys.exit("torch" in sys.modules)
"""


def as_objects(rows):
    column = np.empty(len(rows), dtype=object)
    column[:] = rows
    return column


def test_columns_say_what_the_model_says(feature_run):
    X = tiny_features().items
    X.setflags(write=False)
    answer = sw.Predictor(feature_run, device="cpu")({"features": X, "id": np.arange(len(X))})
    expected = sw.load(feature_run, "cpu").predict(X.copy())
    assert list(answer["label"]) == [p.label for p in expected]
    assert list(answer["status"]) == [p.status for p in expected]
    assert list(answer["label_b"]) == [p.source_labels["b"] for p in expected]
    np.testing.assert_array_equal(answer["probability"], np.float32([p.probability for p in expected]))
    np.testing.assert_array_equal(
        answer["energy_after_a"], np.float32([p.energy_after["a"] for p in expected])
    )
    assert "id" not in answer
    assert "".join(answer["reason"]) == ""


@pytest.mark.filterwarnings("error")  # read-only memory, values beyond float32
def test_a_bad_row_has_a_reason_and_changes_no_other(feature_run):
    X = tiny_features().items
    predictor, good = sw.Predictor(feature_run, device="cpu", keep=["id"]), X[:2]
    bad = [None, np.full(5, np.nan), np.full(5, 1e300), X[0, :3], "text", X[:2], [1, None, 3, 4, 5], 7.0]
    answer = predictor({"features": as_objects([good[0], *bad, list(good[1])]), "id": np.arange(10)})
    assert list(answer["status"] == "unreadable") == [False] + [True] * 8 + [False]
    assert list(answer["reason"]) == [
        "",
        "missing value",
        "NaN or infinity",
        "NaN or infinity",
        "expected 5 values, found 3",
        "not a vector of numbers",
        "expected 5 values, found (2, 5)",
        "NaN or infinity",
        "expected 5 values, found ()",
        "",
    ]
    assert set(answer["label"][1:-1]) == {""}
    assert np.isnan(answer["probability"][1:-1]).all()
    assert list(answer["id"]) == list(range(10))
    alone = predictor({"embedding": good, "id": np.arange(2)})
    for name in set(answer) - {"id"}:
        np.testing.assert_array_equal(answer[name][[0, -1]], alone[name])
    assert set(predictor(as_objects([None]))["status"]) == {"unreadable"}
    assert len(predictor(X[:0])["label"]) == 0
    far = predictor(np.full((1, 5), 1e38, np.float32))
    assert (far["status"][0], far["label"][0]) == ("unreadable", "")
    assert "no finite prediction" in far["reason"][0]


def test_a_column_that_is_not_there_is_an_input_error(feature_run):
    predictor = sw.Predictor(feature_run, device="cpu")
    with pytest.raises(InputError, match="Expected a column 'features' in the batch, but found rows"):
        predictor({"rows": np.zeros((1, 5))})
    assert len(sw.Predictor(feature_run, device="cpu", column="rows")({"rows": np.zeros((1, 5))})["label"])
    with pytest.raises(InputError, match="Expected a column 'id' to keep"):
        sw.Predictor(feature_run, keep=["id"], device="cpu")({"features": np.zeros((1, 5))})
    with pytest.raises(InputError, match="Expected a model folder"):
        sw.Predictor("nowhere")({"features": np.zeros((1, 5))})


def test_columns_of_the_output_can_be_chosen(feature_run):
    X = tiny_features().items[:3]
    chosen = sw.Predictor(feature_run, keep=["id"], columns=["status", "label"], device="cpu")
    assert list(chosen({"features": X, "id": np.arange(3)})) == ["id", "status", "label"]
    with pytest.raises(InputError, match="Did you mean 'label'"):
        sw.Predictor(feature_run, columns=["labels"], device="cpu")(X)


def test_it_is_small_to_pickle_and_light_to_import(feature_run):
    predictor = sw.Predictor(feature_run, device="cpu", num_steps=0)
    X = tiny_features().items
    answer = predictor({"features": X})
    sent = pickle.dumps(predictor)
    assert len(sent) < 1000
    ours, theirs = Pipe()
    ours.send(predictor)
    again = theirs.recv()({"features": X})
    assert all(np.array_equal(answer[name], again[name]) for name in answer)
    assert set(answer["status"]) == {"not_adapted"}
    framed = struct.pack("!i", len(sent)) + sent  # as another process gets it
    assert subprocess.run([sys.executable, "-c", RECEIVE], input=framed, check=False).returncode == 0


def test_a_model_folder_that_was_written_again_is_loaded_again(feature_run, tmp_path):
    X, model = tiny_features().items, sw.load(feature_run, "cpu")
    model.save(tmp_path)
    assert "not_adapted" not in sw.Predictor(tmp_path, device="cpu")(X)["status"]
    model.adapter.set_params(num_steps=0)
    model.save(tmp_path)
    assert set(sw.Predictor(tmp_path, device="cpu")(X)["status"]) == {"not_adapted"}


def test_images_as_bytes_paths_arrays_and_dictionaries(tiny_run, tmp_path):
    paths = sorted(image_folder(tmp_path / "images").rglob("*.png"))[:5]
    predictor = sw.Predictor(tiny_run, device="cpu", root=tmp_path)
    expected = sw.load(tiny_run, "cpu").predict(paths)
    forms = {
        "bytes": [path.read_bytes() for path in paths],
        "relative": [str(path.relative_to(tmp_path)) for path in paths],
        "absolute": [str(path) for path in paths],
        "pil": [Image.open(path) for path in paths],
        "dictionaries": [{"bytes": path.read_bytes(), "path": None} for path in paths],
        "arrays": [np.asarray(Image.open(path)) for path in paths],
    }
    for form, column in forms.items():
        answer = predictor({"image": as_objects(column)})
        assert list(answer["label"]) == [p.label for p in expected], form
        np.testing.assert_array_equal(answer["probability"], np.float32([p.probability for p in expected]))
    stacked = predictor({"image": np.stack(forms["arrays"])})
    np.testing.assert_array_equal(stacked["probability"], answer["probability"])
    whole = forms["bytes"][0]
    answer = predictor({"path": as_objects([None, b"", whole[:60], b"text", "no.png", "", 3, whole])})
    assert list(answer["status"] == "unreadable") == [True] * 7 + [False]
    assert answer["reason"][1] == "the file is empty"
    assert "No such file" in answer["reason"][4]
    inner = sw.Predictor(tiny_run, device="cpu", root=tmp_path / "images" / "a")
    answer = inner({"path": as_objects(["x/0.png", "../b/x/0.png", str(paths[0])])})
    assert ["outside of the root" in reason for reason in answer["reason"]] == [False, True, False]


def test_texts(tmp_path):
    fit_tiny(tiny_texts(), tmp_path)
    predictor = sw.Predictor(tmp_path, device="cpu")
    texts = ["great day", None, " ", 3, "\ud800", "awful", float("nan")]
    answer = predictor({"text": as_objects(texts)})
    assert list(answer["reason"]) == [
        "",
        "missing value",
        "the text is empty",
        "expected a text, found int",
        "not valid Unicode",
        "",
        "missing value",
    ]
    expected = sw.load(tmp_path, "cpu").predict(["great day", "awful"])
    assert list(answer["label"][[0, 5]]) == [p.label for p in expected]
    many = ["fine", "sad"] * CHUNK["text"]
    assert len(predictor({"text": np.array(many)})["label"]) == len(many)
