"""Tensors with metadata in safetensors files, and files written atomically; never a pickle."""

import hashlib
import json
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from sourceward._util.errors import InputError
from sourceward._util.reading import check_name, check_regular, open_regular, printable
from sourceward._util.values import parse_json

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from torch import Tensor

RESTORE = "Save it again or restore a copy."
RESTART = "Remove it to start the training again."
"""Advice for a damaged file, and for a damaged checkpoint."""


@contextmanager
def atomic_file(path: str | Path) -> Iterator[IO[bytes]]:
    """THE writer: open a temporary file that replaces `path` at the end.

    After an error, or a kill, the old file is unchanged. What a killed process left is removed by the next
    one that writes the same file. Only a regular file is replaced: see `check_target`.
    """
    path = Path(path)
    check_target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(path)
    temporary, stream = _create(path)
    try:
        with stream:
            yield stream
            stream.flush()
            check_target(path)  # as it is by now
            if fcntl is None:
                stream.close()
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_target(path: str | Path) -> None:
    """Refuse a file that cannot be written, before the work: a device, a folder, a read-only folder."""
    path = Path(path)
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):  # a new name, or a broken link, which is replaced
        mode = None
    except (OSError, ValueError) as error:
        raise _not_writable(path, getattr(error, "strerror", None) or str(error)) from None
    if mode is not None and not stat.S_ISREG(mode):
        what = "it is a folder" if stat.S_ISDIR(mode) else "it is no regular file"
        raise _not_writable(path, what)
    above = path.parent
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise _not_writable(path, f"'{above}' is no folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise _not_writable(path, f"no permission to write in '{above}'")


def check_targets(*paths: str | Path | None) -> None:
    """Refuse files that cannot be written, before the work; None stands for no file."""
    for path in paths:
        if path is not None:
            check_target(path)


def _not_writable(path: Path, reason: str) -> InputError:
    return InputError(f"Expected a file that can be written, but got '{printable(str(path))}': {reason}.")


def _prefix(path: Path) -> str:
    """How the names of temporary files of `path` begin; a long name is cut to leave room for the rest."""
    name = os.fsencode(path.name)
    return f".{os.fsdecode(name[:180])}."


def _create(path: Path) -> tuple[Path, IO[bytes]]:
    """Create a temporary file beside `path`, locked as long as this process writes it."""
    while True:
        temporary = path.with_name(f"{_prefix(path)}{uuid.uuid4().hex}")
        stream = open(temporary, "xb")  # noqa: SIM115, the caller closes it
        if fcntl is None:
            return temporary, stream
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        if os.fstat(stream.fileno()).st_nlink:
            return temporary, stream
        stream.close()  # taken for a left-over file before it was locked


def _remove_left_over(path: Path) -> None:
    """Remove temporary files of `path` that no living process writes."""
    if fcntl is None or not path.parent.is_dir():
        return
    for name in os.listdir(path.parent):
        if not (name.startswith(_prefix(path)) and _TEMPORARY.fullmatch(name[len(_prefix(path)) :])):
            continue
        with suppress(OSError, InputError), open_regular(path.with_name(name), None) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.with_name(name).unlink()


_TEMPORARY = re.compile("[0-9a-f]{32}")


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically."""
    with atomic_file(path) as stream:
        stream.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


def append_text(path: str | Path, text: str) -> None:
    """Add to the end of a regular file, or of a new one; a link is not followed."""
    path = Path(path)
    if path.is_symlink():
        raise _not_writable(path, "it is a symbolic link")
    check_target(path)
    # Not to wait for the reader of a pipe that has taken the place of the file meanwhile.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags, 0o666), "ab") as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))


def save_tensors(path: str | Path, tensors: "dict[str, Tensor]", metadata: dict[str, Any]) -> None:
    """Write `tensors` and JSON `metadata` to `path` atomically, with a checksum of both."""
    from safetensors.torch import save

    check_name(path)
    check_target(path)
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps({**metadata, "sha256": _digest(plain, metadata)}, sort_keys=True)
    # Not `save_file`: its files are readable by their owner alone, whatever the umask.
    write_whole(path, save(plain, metadata={"sourceward": text}))


def load_tensors(path: str | Path, fix: str = RESTORE) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Read a file of `save_tensors`; `fix` is the advice in the error for a damaged one."""
    path = Path(path)
    if not os.path.lexists(path):
        raise InputError(f"Expected a sourceward file at '{path}', but found none. Check the path.")
    check_name(path)
    check_regular(path, None)  # its tensors are mapped, and their sizes are those of the file
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("sourceward")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
        metadata = parse_json(text or "{}")
        if not isinstance(metadata, dict):
            raise ValueError("its metadata is no object")
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
        check_regular(path, None)
        with safe_open(path, framework="pt") as file:
            found = parse_json((file.metadata() or {}).get("sourceward", "{}"))
    except (SafetensorError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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
    check_name(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise InputError(
            f"Expected `--out` to be a folder that can be written, but got '{printable(str(path))}': "
            f"{error.strerror}."
        ) from None
    except ValueError as error:
        raise InputError(f"Expected the path of a folder, but got {str(path)!r}: {error}.") from None
    return path


@contextmanager
def held_folder(path: str | Path) -> Iterator[None]:
    """Hold a folder, as long as the context or this process lasts; refuse one that another process holds."""
    open_folder(path)
    if fcntl is None:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"Another process is writing to '{path}'. Wait until it has finished, or name another folder."
        ) from None
    except OSError:  # some network file systems have no locks
        pass
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.rmdir(path)  # if nothing was written yet
        raise
    finally:
        os.close(handle)


def tensor_hash(tensors: "dict[str, Tensor]") -> str:
    """Return a hash of names and values."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
