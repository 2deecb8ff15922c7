"""The Gradio app that `push_to_hub` writes, run as a Space runs it and used by Gradio's own client."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

import sourceward as sw
from sourceward.model.hub import SPACE, hub_class
from tests.tiny_runs import fit_tiny, tiny_features, tiny_texts

pytest.importorskip("gradio", reason="Gradio is not installed (it is in sourceward[dev])")
pytest.importorskip("huggingface_hub", reason="pip install sourceward[train]")
OFF = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "GRADIO_SERVER_NAME": "127.0.0.1"}


@contextmanager
def running(model: sw.Model, folder: Path) -> Iterator[object]:
    """Save as `push_to_hub` does, start app.py in a process, and yield a client."""
    from gradio_client import Client

    hub_class()(model).save_pretrained(folder)
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, **OFF, "PYTHONUNBUFFERED": "1", "PYTHONPATH": paths}
    process = subprocess.Popen(
        [sys.executable, "app.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        lines = iter(process.stdout.readline, "")
        address = next((found[0] for line in lines if (found := re.search(r"http://127[\d.:]+", line))), None)
        assert address, "the app did not start"
        yield Client(address, verbose=False)
    finally:
        process.terminate()
        process.wait(30)


def test_the_file_is_short():
    assert len(SPACE.read_text().splitlines()) <= 60


def test_images(tiny_run: Path, tmp_path: Path):
    from gradio_client import handle_file

    Image.new("RGB", (20, 16), (200, 30, 90)).save(tmp_path / "a.png")
    model = sw.load(tiny_run, "cpu")
    with running(model, tmp_path / "space") as client:
        label, about, rows = client.predict(handle_file(tmp_path / "a.png"), api_name="/predict")
    (expected,) = model.predict([tmp_path / "a.png"])
    assert label["label"] == expected.label
    assert label["confidences"][0]["confidence"] == pytest.approx(expected.probability, abs=1e-5)
    assert f"trust {expected.trust:.1%}" in about
    assert {row[0]: row[1] for row in rows["data"]} == expected.source_labels


@pytest.mark.parametrize("kind", ["text", "features"])
def test_what_is_typed(kind: str, tmp_path: Path):
    """Without a process of its own: the interface calls the same function."""
    from sourceward.model.space import build_app

    data = tiny_texts() if kind == "text" else tiny_features()
    model = fit_tiny(data, tmp_path, **({"freeze": True} if kind == "text" else {}))
    typed = data.items[0] if kind == "text" else ", ".join(map(str, data.items[0].tolist()))
    predict = build_app(model).fn
    assert (
        max(predict(typed)[0].items(), key=lambda pair: pair[1])[0] == model.predict(data.items[:1])[0].label
    )
    for bad in ("", "  ") if kind == "text" else ("", "a, b", "1, 2"):
        with pytest.raises(Exception, match=r"[Ee]xpected|could not convert"):
            predict(bad)
