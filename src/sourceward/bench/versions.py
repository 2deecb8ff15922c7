"""What a result depends on besides its inputs."""

import platform
import sys


def versions() -> dict[str, str]:
    """Software and machine, for a results file."""
    import numpy
    import sklearn
    import torch

    from sourceward import __version__

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "sourceward": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scikit-learn": sklearn.__version__,
        "machine": f"{sys.platform} {device}",
    }
