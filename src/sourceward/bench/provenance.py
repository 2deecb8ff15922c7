"""Where a result comes from: the command, the software and the machine."""

import platform
import re
import shlex
import sys
from importlib import metadata


def command(argv: list[str]) -> str:
    """As typed, with file names for absolute paths: whose folders they are is nobody's business.

    >>> command(["x", "bench", "pacs:/data/pacs.tar", "--out", "results/pacs"])
    'sourceward bench pacs:pacs.tar --out results/pacs'
    """
    absolute = re.compile(r"(?<![^=:])/\S*/")
    return shlex.join(["sourceward", *(absolute.sub("", part) for part in argv[1:])])


def versions() -> dict[str, str]:
    """Software and machine, for a results file."""
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
