"""A file on disk or in a .tar, and the list of files of a .tar, which is never unpacked."""

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sourceward._util.errors import InputError
from sourceward._util.reading import open_regular, read_regular


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file on disk, or `size` bytes of a .tar from `offset`."""

    path: str
    size: int
    offset: int = 0

    def read(self) -> bytes:
        return read_regular(self.path, "image_bytes", offset=self.offset, size=self.size)

    def signature(self) -> str:
        return str(self.size)


class _Header(tarfile.TarInfo):
    """A header whose size is 0 or more: with less, `tarfile` reads the same header forever."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0:
            raise tarfile.ReadError(f"a header states a size of {header.size}")
        return header


def list_tar(path: Path) -> Iterator[tuple[str, StoredFile]]:
    """Yield the files of an uncompressed .tar; of two with one name, the later is the one that counts."""
    try:
        with open_regular(path, None) as stream:
            yield from _members(path, stream)
    except InputError:
        raise
    except Exception as error:  # a header that lies makes `tarfile` raise whatever its code runs into
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"Expected '{path}' to be an uncompressed .tar, but it cannot be read as one ({reason[0]}). "
            "Decompress it first, or unpack it and pass the folder."
        ) from None


def _members(path: Path, stream: IO[bytes]) -> Iterator[tuple[str, StoredFile]]:
    size, last = os.fstat(stream.fileno()).st_size, -1
    with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header) as archive:
        for member in archive:
            if member.offset_data <= last or member.size < 0:
                raise tarfile.ReadError("its headers do not follow one another")
            last = member.offset_data
            if member.isdir():
                continue
            length = member.size if member.isreg() and not member.issparse() else 0  # links count as empty
            if member.offset_data + length > size:
                raise tarfile.ReadError(f"{member.name!r} ends after the end of the file")
            yield member.name.removeprefix("./"), StoredFile(str(path), length, member.offset_data)
        stream.seek(archive.offset)
        if any(stream.read(tarfile.BLOCKSIZE)):  # `tarfile` takes a damaged header for the end
            raise tarfile.ReadError(f"the header at byte {archive.offset:,} is damaged")
