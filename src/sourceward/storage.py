"""Tensors and metadata in one safetensors file: written whole or not at all, never a pickle."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sourceward.errors import InputError


def save_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write `tensors` and JSON `metadata` to `path`; a crash or a full disk leaves the old file as it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        save_file(plain, temporary, metadata={"sourceward": json.dumps(metadata, sort_keys=True)})
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"Expected a sourceward file at '{path}', but found none. Check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get("sourceward")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"'{path}' is damaged or no safetensors file ({error}). Save it again or restore a copy."
        ) from None
    if metadata is None:
        raise InputError(f"'{path}' is a safetensors file, but not one that sourceward wrote.")
    return tensors, json.loads(metadata)
