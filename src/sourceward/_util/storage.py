"""Tensors with metadata in safetensors files, and files written atomically; never a pickle."""

import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from sourceward._util.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

RESTORE = "Save it again or restore a copy."
RESTART = "Remove it to start the training again."
"""Advice for a damaged file, and for a damaged checkpoint."""


@contextmanager
def atomic_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` at the end; after an error the old file is unchanged."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as stream:
            yield stream
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically."""
    with atomic_file(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def save_tensors(path: str | Path, tensors: "dict[str, Tensor]", metadata: dict[str, Any]) -> None:
    """Write `tensors` and JSON `metadata` to `path` atomically, with a checksum of both."""
    from safetensors.torch import save

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps({**metadata, "sha256": _digest(plain, metadata)}, sort_keys=True)
    # Not `save_file`: its files are readable by their owner alone, whatever the umask.
    write_whole(path, save(plain, metadata={"sourceward": text}))


def load_tensors(path: str | Path, fix: str = RESTORE) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Read a file of `save_tensors`; `fix` is the advice in the error for a damaged one."""
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
            raise ValueError("its checksum does not match")
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"'{path}' is damaged or no safetensors file ({error}). {fix}") from None
    if text is None:
        raise InputError(f"'{path}' is a safetensors file, but not one that sourceward wrote.")
    return tensors, metadata


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Return the metadata of a file of `save_tensors` without checking it; {} if it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("sourceward", "{}"))
    except (SafetensorError, OSError, ValueError):
        return {}


def _digest(tensors: "dict[str, Tensor]", metadata: dict[str, Any]) -> str:
    """Return the checksum of tensors and metadata, so that a flipped bit does not go unnoticed."""
    import torch

    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def open_folder(path: str | Path) -> Path:
    """Create a folder and check that it is writable, before any work is done."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise InputError(
            f"Expected `--out` to be a folder that can be written, but got '{path}': {error.strerror}."
        ) from None
    return path


def tensor_hash(tensors: "dict[str, Tensor]") -> str:
    """Return a hash of names and values."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
