"""The core needs torch, NumPy, Pillow, safetensors, scikit-learn, timm and torchvision, and nothing else."""

import subprocess
import sys
from pathlib import Path

import sourceward

BLOCKED = [
    "typer",
    "rich",
    "transformers",
    "matplotlib",
    "jinja2",
    "accelerate",
    "ray",
    "onnx",
    "onnxruntime",
    "datasets",
    "pyarrow",
    "pandas",
    "fastapi",
    "uvicorn",
    "tensorboard",
    "hypothesis",
    "torchmetrics",
]

SCRIPT = f"""
import sys

class Without:
    # A finder that does not find what is not to be there.

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {BLOCKED!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import sourceward
assert "timm" not in sys.modules and "huggingface_hub" not in sys.modules, "loaded before it is used"
import numpy as np
rng = np.random.default_rng(0)
y = np.tile([0, 1], 30)
X = rng.normal(size=(60, 4)) + 3 * y[:, None]
est = sourceward.EnergyAdapter(max_iter=3, train_steps=2, verbose=True).fit(X, y, np.repeat(["a", "b"], 30))
est.save("est")
assert (sourceward.EnergyAdapter.load("est").predict(X) == est.predict(X)).all()
print("done")
"""


def test_import_and_fit_without_optional_packages(tmp_path: Path):
    out = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout == "done\n"
    assert "fitting 3/3" in out.stderr, "a plain progress line where rich is missing"


def test_completion_shows_every_public_name_and_no_other():
    shown = [name for name in dir(sourceward) if not name.startswith("_")]
    assert shown == sorted(sourceward.__all__)
    assert all(hasattr(sourceward, name) for name in dir(sourceward))
