"""What is imported when: nothing heavy at start, and no optional package before it is used.

The core needs torch, NumPy, Pillow, safetensors, scikit-learn, timm and torchvision, and nothing else.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sourceward
from sourceward.cli.main import COMMANDS

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
est = sourceward.EnergyAdapter(max_iter=3, verbose=True).fit(X, y, np.repeat(["a", "b"], 30))
est.save("est")
assert (sourceward.EnergyAdapter.load("est").predict(X) == est.predict(X)).all()
print("done")
"""


HEAVY = ("torch", "numpy", "sklearn", "PIL")
HELP = """
import sys
sys.argv = ["sourceward", *{words!r}, "--help"]
from sourceward.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.mark.parametrize(
    "words", [[], *([name] for name in COMMANDS)], ids=lambda words: "".join(words) or "-"
)
def test_help_loads_no_heavy_package(words: list[str]):
    _runs_without_heavy_packages(HELP.format(words=words))


def test_import_loads_no_heavy_package():
    _runs_without_heavy_packages("import sourceward; dir(sourceward)")


def _runs_without_heavy_packages(script: str) -> None:
    check = f"\nimport sys; loaded = set(sys.modules) & set({HEAVY!r}); assert not loaded, loaded"
    out = subprocess.run([sys.executable, "-c", script + check], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        sourceward.fitt  # noqa: B018


def test_import_and_fit_without_optional_packages(tmp_path: Path):
    out = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout == "done\n"
    assert "fitting 3/3" in out.stderr, "a plain progress line where rich is missing"


def test_completion_shows_every_public_name_and_no_other():
    shown = [name for name in dir(sourceward) if not name.startswith("_")]
    assert shown == sorted(sourceward.__all__)
    assert all(hasattr(sourceward, name) for name in dir(sourceward))


SOURCE = Path(sourceward.__file__).parent


def test_no_room_uses_private_names_of_another():
    """import-linter checks modules; this checks names, as in `from sourceward.data.open import _guess`."""
    found = {str(file.relative_to(SOURCE)): _foreign_private_names(file) for file in SOURCE.rglob("*.py")}
    found = {file: names for file, names in found.items() if names}
    assert not found, f"private to another room: {found}. Make them public there, or do without."


def _foreign_private_names(file: Path) -> list[str]:
    tree, room = ast.parse(file.read_text()), file.relative_to(SOURCE).parts[0].removesuffix(".py")
    foreign, private = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sourceward."):
            _, other, *rest = (node.module or "").split(".")
            if other != room:
                foreign |= {alias.asname or alias.name for alias in node.names}
                private += [name for name in (*rest, *(a.name for a in node.names)) if _is_private(name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and _is_private(node.attr):
            private += [f"{node.value.id}.{node.attr}"] if node.value.id in foreign else []
    return private


NAMED_TUPLE = ("_asdict", "_fields", "_make", "_replace")
"""Public in spite of the underscore: see `collections.namedtuple`."""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE
