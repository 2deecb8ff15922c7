"""Tensors and metadata in one safetensors file, and files written whole or not at all; never a pickle."""

import hashlib
import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sourceward._util.errors import InputError

RESTORE = "Save it again or restore a copy."
RESTART = "Remove it, and the training starts anew."
"""What to do about a damaged file, and about one that a training was to go on from."""


def save_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write `tensors` and JSON `metadata` to `path`; a crash or a full disk leaves the old file as it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps({**metadata, "sha256": _digest(plain, metadata)}, sort_keys=True)
    try:
        # Not `save_file`: its files are readable by their owner alone, whatever the umask.
        temporary.write_bytes(save(plain, metadata={"sourceward": text}))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_tensors(path: str | Path, fix: str = RESTORE) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; `fix` is what to do where it is damaged."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"Expected a sourceward file at '{path}', but found none. Check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("sourceward")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
        metadata = json.loads(text or "{}")
        expected = metadata.pop("sha256", None)
        if expected is not None and expected != _digest(tensors, metadata):
            raise ValueError("its content is not what was saved")
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"'{path}' is damaged or no safetensors file ({error}). {fix}") from None
    if text is None:
        raise InputError(f"'{path}' is a safetensors file, but not one that sourceward wrote.")
    return tensors, metadata


def read_metadata(path: str | Path) -> dict[str, Any]:
    """What `save_tensors` wrote beside the tensors, unchecked; nothing where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("sourceward", "{}"))
    except (SafetensorError, OSError, ValueError):
        return {}


def _digest(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> str:
    """Of everything in the file: a flipped bit must not become a prediction."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all: beside it first, then renamed into place."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def open_folder(path: str | Path) -> Path:
    """Make a folder and be sure that it can be written, before the work and not after it."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise InputError(
            f"Expected `--out` to be a folder that can be written, but got '{path}': {error.strerror}."
        ) from None
    return path


def tensor_hash(tensors: dict[str, Tensor]) -> str:
    """Of names and values."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
