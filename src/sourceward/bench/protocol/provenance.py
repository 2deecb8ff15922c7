"""Where a result comes from: the command, the code, the software and the machine."""

import hashlib
import inspect
import platform
import re
import shlex
import sys
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from sourceward.adaptation import ADAPTERS

WITHOUT_EFFECT = ("cli/", "report/", "bench/experiments/", "bench/speed/", "bench/demo.py")
"""Code that changes no number of a run."""


def package_folder() -> Path:
    """Return the folder of the installed package."""
    return Path(str(files("sourceward")))


@cache
def code_version() -> str:
    """Return a hash of the package's code: when it changes, runs are computed again."""
    root, hasher = package_folder(), hashlib.blake2b(digest_size=6)
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(WITHOUT_EFFECT):
            hasher.update(name.encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()


@cache
def adapter_version(name: str) -> str:
    """Return a hash of the file of a user's own adapter; '' for those of the package."""
    try:
        file = Path(inspect.getfile(ADAPTERS[name])) if name in ADAPTERS else None
    except (TypeError, OSError):  # typed into an interpreter
        return ""
    if file is None or file.is_relative_to(package_folder()):
        return ""
    return hashlib.blake2b(file.read_bytes(), digest_size=6).hexdigest()


def command(argv: list[str]) -> str:
    """Return the command as typed, with file names in place of absolute paths, and without `--jobs 0`, by
    which it would compute nothing.

    >>> command(["x", "bench", "pacs:/data/pacs.tar", "--out", "results/pacs"])
    'sourceward bench pacs:pacs.tar --out results/pacs'
    >>> command(["x", "--weights", "/data/a.safetensors,/data/b.safetensors"])
    'sourceward --weights a.safetensors,b.safetensors'
    >>> command(["x", "bench", "photos", "--jobs", "0", "--out", "grid"])
    'sourceward bench photos --out grid'
    """
    absolute = re.compile(r"(?<![^=:,])/[^\s,]*/")
    parts = [absolute.sub("", part) for part in argv[1:] if part != "--jobs=0"]
    for place in range(len(parts) - 2, -1, -1):
        if parts[place : place + 2] == ["--jobs", "0"]:
            del parts[place : place + 2]
    return shlex.join(["sourceward", *parts])


def weights_name(weights: str | None) -> str | None:
    """Return the file names of weights, without their folders."""
    return None if weights is None else ",".join(Path(file).name for file in weights.split(","))


def versions() -> dict[str, str]:
    """Return the versions of software and machine, for a results file."""
    import numpy
    import sklearn
    import torch

    from sourceward import __version__

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    backbones = {name: _installed(name) for name in ("torchvision", "timm", "transformers")}
    return {
        "sourceward": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scikit-learn": sklearn.__version__,
        **{name: version for name, version in backbones.items() if version},
        "machine": f"{sys.platform} {device}",
    }


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
