"""Measure what each extra installs, in the environment that runs this, and write results/install.json.

python docs/measure_install.py
"""

import json
import platform
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = ("", "cli,report", "all", "dev")
CUDA = ("nvidia", "cuda", "triton")
"""How the names of packages start that the CPU build of torch does not install."""


def closure(name: str, extras: frozenset[str], found: dict[str, set[str]]) -> None:
    """Add a package and what it requires, with the extras that each is required with."""
    key = name.lower().replace("_", "-")
    if key in found and extras <= found[key]:
        return
    found.setdefault(key, set()).update(extras or {""})
    try:
        needed = [Requirement(text) for text in requires(name) or []]
    except PackageNotFoundError:
        del found[key]
        return
    for each in needed:
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            closure(each.name, frozenset(each.extras), found)


def megabytes(name: str) -> float:
    """Return the size of a package's files."""
    own = distribution(name)
    return sum(file.size or 0 for file in own.files or []) / 1e6


def main() -> None:
    rows = []
    for extras in EXTRAS:
        found: dict[str, set[str]] = {}
        closure("sourceward", frozenset(filter(None, extras.split(","))), found)
        sizes = {name: megabytes(name) for name in found}
        cuda = sum(size for name, size in sizes.items() if name.startswith(CUDA))
        rows.append(
            {
                "extras": extras,
                "packages": len(found),
                "MB": round(sum(sizes.values())),
                "of_it_CUDA_MB": round(cuda),
            }
        )
    result = {
        "command": "python docs/measure_install.py",
        "platform": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("sourceward", "torch")},
        "rows": rows,
    }
    Path("results/install.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
