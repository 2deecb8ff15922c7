"""Cases of .tar files: headers that lie, names of any kind, and damage."""

import io
import tarfile

from sourceward import open_dataset
from sourceward.model.inputs import find_inputs
from tests.fuzz.kinds import Finding, Random, World, both, image_bytes, pipe, use_dataset, value
from tests.fuzz.mutate import damage, pick

TYPES = tuple(bytes([byte]) for byte in b"LKxgXS7")
"""Headers that `tarfile` reads together with the next: long names, PAX records, sparse files."""
SIZES = (
    *(b"\xff" * 4 + (-size).to_bytes(8, "big", signed=True) for size in (512, 512, 512, 1024, 1536)),
    *(b"\x80" + size.to_bytes(11, "big") for size in (2**40, 2**80)),
    b"77777777777\0",
)
"""Sizes in a header of a .tar: negative, which leads back (-512 to the header itself), and huge."""


def archives(world: World, rng: Random) -> str:
    path = world.work / "a.tar"
    with tarfile.open(path, "w", format=pick(rng, (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))) as archive:
        for _ in range(int(rng.integers(1, 7))):
            name = (
                "/".join(pick(rng, ("a", "b", "..", "é" * 60, ".", "x" * 120)) for _ in range(2)) + "/1.png"
            )
            member = tarfile.TarInfo(name)
            member.type = pick(
                rng, (tarfile.REGTYPE,) * 6 + (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE)
            )
            member.linkname = pick(rng, ("", "/etc/hostname", name))
            data = image_bytes(rng) if member.isreg() else b""
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(0, 4))):
        starts = [place for place in range(0, len(data), 512) if data[place + 257 : place + 262] == b"ustar"]
        header = int(pick(rng, starts or [0]))
        field = pick(rng, ((124, 12), (124, 12), (156, 1), (0, 100), (345, 155), (257, 8)))
        start = header + field[0]
        odd = (rng.bytes(field[1]), b"\xff" * field[1], b"7" * field[1])
        odd += {12: SIZES, 1: TYPES}.get(field[1], ())
        data[start : start + field[1]] = pick(rng, odd)
        if field[1] == 12 and rng.random() < 0.3:
            data[header + 156 : header + 157] = pick(rng, TYPES)
        if rng.random() < 0.9:
            data[header + 148 : header + 156] = b" " * 8
            data[header + 148 : header + 156] = b"%06o\0 " % sum(data[header : header + 512])
    path.write_bytes(damage(bytes(data), rng) if rng.random() < 0.4 else data)
    pipe(path, rng)

    def read() -> None:
        data = open_dataset(path)
        use_dataset(data)
        for item in data.items:
            if len(item.read()) != item.size:
                raise Finding("a file of the archive is shorter than listed")

    return both(read, lambda: [value(sample) for sample in find_inputs("image", [path])])
