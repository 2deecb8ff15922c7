"""Texts and names that are not valid Unicode: read with escapes, or refused, and printed by every command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import sourceward as sw
from sourceward import EnergyAdapter, InputError, open_dataset
from sourceward._util.values import parse_json, read_json
from sourceward.deploy.server_inputs import read_json as read_body
from sourceward.deploy.server_settings import Limits
from sourceward.model.inputs import Failure
from tests.helpers import QUICK, make_domains
from tests.tiny_runs import fit_tiny, image_folder, tiny_features, tiny_texts

LONE = "a\ud800"
X, Y, SOURCE = make_domains()


def command(*given: object, **names: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where standard output takes valid UTF-8 alone."""
    given = [sys.executable, "-m", "sourceward", *given]
    names |= {"PYTHONIOENCODING": "utf-8:strict", "OMP_NUM_THREADS": "1"}
    return subprocess.run(given, capture_output=True, text=True, env={**os.environ, **names})


def features_with_names(path: Path) -> Path:
    rows = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    label, domain = np.arange(60) % 2, np.arange(60) // 2 % 3
    rows += 3 * label[:, None]
    if path.suffix == ".npz":
        names, places = np.array([LONE, "b"]), np.array(["x", "y\udc41", "z"])
        np.savez(path, features=rows, label=names[label], domain=places[domain])
    else:
        meta = {"classes": json.dumps([LONE, "b"]), "domains": json.dumps(["x", "y\udc41", "z"])}
        save_file({"features": rows, "label": label, "domain": domain}, path, metadata=meta)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_names_in_feature_files(tmp_path, suffix):
    path = features_with_names(tmp_path / f"f{suffix}")
    data = open_dataset(path)
    assert set(data.classes) == {"a\\ud800", "b"}
    assert data.domain_names == ("x", "y\\udc41", "z")
    assert data.fingerprint()
    fit_tiny(data, tmp_path / "run", target="z")
    assert "a\\ud800" in sw.load(tmp_path / "run", "cpu").classes
    done = command("doctor", path)
    assert "Traceback" not in done.stderr
    assert "y\\udc41" in done.stdout


def test_characters_beyond_unicode(tmp_path):
    names = np.array(["aa", "bb"] * 6)
    names.view(np.uint32)[0] = 0x7FFFFFFF
    np.savez(tmp_path / "f.npz", features=np.ones((12, 2)), label=names, domain=np.arange(12) % 3)
    with pytest.raises(InputError, match="cannot be read as an"):
        open_dataset(tmp_path / "f.npz")


def test_texts_of_a_caller(tmp_path):
    model = fit_tiny(tiny_texts(), tmp_path / "run")
    with pytest.raises(InputError, match="valid Unicode, but one has a lone surrogate"):
        model.predict(["fine", LONE])
    (sample,) = read_body(json.dumps({"texts": [LONE]}).encode(), model, Limits())
    assert isinstance(sample.value, Failure)


def test_tweets(tmp_path):
    """Half of an emoji at the end of a tweet, and one that is nested without end."""
    for event in ("a", "b"):
        for number, (kind, text) in enumerate(
            [("rumours", LONE), ("non-rumours", "fine"), ("rumours", None), ("non-rumours", "no")]
        ):
            folder = tmp_path / event / kind / str(number) / "source-tweets"
            folder.mkdir(parents=True)
            tweet = "[" * 100_000 if text is None else json.dumps({"text": text})
            (folder / f"{number}.json").write_text(tweet)
    data = open_dataset(f"pheme:{tmp_path}", events="all")
    assert "a\\ud800" in data.items
    assert data.fingerprint()


@pytest.mark.parametrize("text", [b'{"a": ["\\ud800"]}', '{"a": ["\\uD800"]}'.encode("utf-16")])
def test_json(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text)
    assert read_json(tmp_path / "a.json") == {"a": ["\\ud800"]}
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


def test_names_in_a_model_folder(tmp_path):
    fit_tiny(tiny_features(), tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    del config["sha256"]
    for part in (config, config["adapter"]):
        part["classes"][0] = LONE
    config["adapter"]["classes_dtype"] = "<U7"
    file.write_text(json.dumps(config))
    model = sw.load(tmp_path / "run", "cpu")
    for text in (repr(model), model._repr_html_(), *model.classes):
        assert text.encode()


@pytest.mark.parametrize("given", [{"y": np.array([LONE, "b", "c"])[Y]}, {"sample_domain": [LONE] * len(Y)}])
def test_names_that_no_file_can_hold_are_refused_before_training(given):
    given = {"y": Y, "sample_domain": SOURCE, **given}
    with pytest.raises(InputError, match="valid Unicode"):
        EnergyAdapter(**QUICK).fit(X, **given)


def test_a_folder_whose_name_is_not_utf8(tmp_path):
    """Data is read from it; a model is not written to it, since safetensors could not open it again."""
    data = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"caf\xe9"))
    image_folder(Path(data))
    assert command("doctor", data).returncode == 0
    done = command("cache", SOURCEWARD_CACHE=data)
    assert "caf\\udce9" in done.stdout, done.stderr
    assert open_dataset(data).name.encode()
    with pytest.raises(InputError, match=r"valid UTF-8, but got .*caf\\udce9/run"):
        fit_tiny(tiny_features(), Path(data) / "run")
    assert not os.path.exists(f"{data}/run")
    with pytest.raises(InputError, match="valid UTF-8"):
        EnergyAdapter.load(f"{data}/a/x/0.png")
