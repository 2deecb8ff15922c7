"""THE reader of files that somebody else wrote: regular files only, and never more bytes than a limit.

A path may come from a table or an archive. A device or a pipe has no end, or makes the reader wait forever; a
small compressed file may hold more than memory does.
"""

import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from sourceward._util.errors import InputError


class Limit(NamedTuple):
    """A limit: the environment variable that changes it, its default, and what it bounds."""

    variable: str
    default: int
    bounds: str


LIMITS = {
    "file_bytes": Limit("SOURCEWARD_MAX_FILE_BYTES", 16 * 2**30, "bytes of a file that is read whole"),
    "expanded_bytes": Limit(
        "SOURCEWARD_MAX_EXPANDED_BYTES", 2 * 2**30, "bytes that decompression adds to the size of a file"
    ),
    "config_bytes": Limit("SOURCEWARD_MAX_CONFIG_BYTES", 64 * 2**20, "bytes of a JSON file of settings"),
    "image_bytes": Limit("SOURCEWARD_MAX_IMAGE_BYTES", 256 * 2**20, "bytes of an encoded image"),
    "image_pixels": Limit(
        "SOURCEWARD_MAX_IMAGE_PIXELS", 89_478_485, "pixels of an image, decoded or resized (Pillow's own)"
    ),
}


def limit_of(name: str) -> int:
    """Return a limit: that of its environment variable, else its default.

    >>> limit_of("image_bytes")
    268435456
    """
    variable, default, _ = LIMITS[name]
    text = os.environ.get(variable, "")
    if text and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InputError(f"Expected {variable} to be a whole number above 0, but got {text!r}.")
    return int(text) if text else default


def check_limit(name: str, size: int, what: str) -> None:
    """Refuse a size above a limit; `what` begins the message.

    >>> check_limit("image_pixels", 10**9, "The image")
    Traceback (most recent call last):
    sourceward._util.errors.InputError: The image has 1,000,000,000 pixels, and the limit is 89,478,485. \
Set SOURCEWARD_MAX_IMAGE_PIXELS to allow more.
    """
    limit = limit_of(name)
    if size > limit:
        unit = "pixels" if name.endswith("pixels") else "bytes"
        raise InputError(
            f"{what} has {size:,} {unit}, and the limit is {limit:,}. Set {LIMITS[name].variable} to allow "
            "more."
        )


def regular_size(path: str | Path) -> int | None:
    """Return the size of a regular file; None for anything else, and for what cannot be found."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a name that is too long, a loop of links, a null character
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def check_regular(path: str | Path, limit: str | None = "file_bytes") -> int:
    """Return the size of a regular file, or raise an error: for libraries that open a path themselves."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"Expected the path of a file, but got {str(path)!r}: {error}.") from None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"Expected '{path}' to be a regular file, but it is {_kind(found.st_mode)}.")
    if limit is not None:
        check_limit(limit, found.st_size, f"'{path}'")
    return found.st_size


def open_regular(path: str | Path, limit: str | None = "file_bytes") -> BufferedReader:
    """Open a regular file of at most `limit` bytes for reading."""
    check_regular(path, limit)  # before it is opened: that alone may act on a device
    try:
        # Not to wait for the writer of a pipe that has taken the place of the file meanwhile.
        stream = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}.") from None
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise InputError(f"Expected '{path}' to be a regular file, but it changed while it was opened.")
    return stream


def read_regular(
    path: str | Path, limit: str = "file_bytes", *, offset: int = 0, size: int | None = None
) -> bytes:
    """Return the bytes of a regular file, or `size` of them from `offset`.

    No more are read than its size says: some files of the system say 0 and have no end.
    """
    with open_regular(path, None if size is not None else limit) as stream:
        there = max(os.fstat(stream.fileno()).st_size - offset, 0)
        wanted = there if size is None else min(size, there)
        check_limit(limit, wanted, f"'{path}'")
        stream.seek(offset)
        return stream.read(wanted)


def check_expanded(path: str | Path, on_disk: int, expanded: int) -> None:
    """Refuse a compressed file that would take far more memory than it has bytes."""
    allowed = on_disk + limit_of("expanded_bytes")
    if expanded > allowed:
        raise InputError(
            f"'{path}' has {on_disk:,} bytes and would take {expanded:,} in memory, more than {allowed:,}. "
            f"Set {LIMITS['expanded_bytes'].variable} to allow more."
        )


def printable(name: str) -> str:
    r"""Return a file's name as valid Unicode: bytes that are not UTF-8 are written as escapes.

    >>> printable("caf\udce9.png"), printable("café.png")
    ('caf\\udce9.png', 'café.png')
    """
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def check_name(path: str | Path) -> None:
    """Refuse a path that is not valid UTF-8, where safetensors or Parquet files are: neither opens it."""
    if printable(str(path)) != str(path):
        raise InputError(
            f"Expected a path that is valid UTF-8, but got '{printable(str(path))}'. Rename the file or "
            "folder."
        )


def inside(root: str | Path, path: str | Path) -> bool:
    """Return whether a path lies below `root`, symbolic links followed."""
    try:
        real = os.path.realpath(root)
        return os.path.commonpath([real, os.path.realpath(path)]) == real
    except (OSError, ValueError):  # a null character; another drive
        return False


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
