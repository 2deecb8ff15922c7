"""The evaluations of a model, kept in its folder for `sourceward report`: RUN/evaluations/<name>.json.

They are no part of the model: loading, copying with `Model.save` and uploading leave them out. They hold
small images or texts of the evaluated samples, which belong to their owners.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sourceward._util.storage import open_folder, read_metadata, write_whole
from sourceward.data import DomainDataset
from sourceward.model.file import CHECKSUM, WEIGHTS
from sourceward.model.model import Model

FOLDER = "evaluations"


def write_evaluation(
    folder: str | Path,
    model: Model,
    dataset: DomainDataset,
    result: Mapping[str, Any],
    allow: str,
    **more: Any,
) -> Path:
    """Write what `evaluate` returned; the same evaluation again replaces its file.

    Args:
        folder: of the model.
        model: as it was evaluated.
        dataset: that was evaluated.
        result: of `evaluate`.
        allow: as given to `evaluate`.
        more: where the result comes from, such as command, versions and seconds.
    """
    settings = {"num_steps": model.settings.num_steps, "tta": model.tta, "allow": allow}
    identity = [dataset.fingerprint(), [*result["domains"]], settings, model.settings.is_off]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    file = open_folder(Path(folder) / FOLDER) / f"{name}.json"
    checksum = read_metadata(Path(folder) / WEIGHTS).get(CHECKSUM)
    data = Path(dataset.name).name
    whole = {"data": data, "model": checksum, "settings": settings, **result, **more}
    write_whole(file, json.dumps(whole, indent=1) + "\n")
    return file
