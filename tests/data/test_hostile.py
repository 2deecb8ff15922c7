"""Files that lie about size, type or names: each is one `InputError`, or a row that says so."""

import io
import json
import os
import tarfile
import time
import zipfile
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sourceward import InputError, open_dataset
from sourceward.data.decode import Geometry, decode_image
from sourceward.data.stored import list_tar
from sourceward.model.inputs import Failure, find_inputs
from sourceward.nn.backbones import create_backbone
from tests.tiny_runs import image_folder

SMALL = Geometry(8, 8)


def png(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (width, height)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(("width", "height"), [(1, 12_000), (12_000, 1), (30_000, 30_000)])
def test_pixels_of_every_image_on_the_way_are_bounded(width, height):
    data = png(width, height) if width * height < 10**6 else huge_png(width, height)
    with pytest.raises(InputError, match=r"pixels|decompression bomb"):
        decode_image(data, Geometry(224, 224))


def huge_png(width: int, height: int) -> bytes:
    """A PNG whose header states its size, and which holds nothing of it."""
    data = bytearray(png(1, 1))
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


def test_an_elongated_image_within_the_limit_is_read():
    assert decode_image(png(1, 100), SMALL).shape == (3, 8, 8)


def test_the_limit_of_pixels_can_be_changed(monkeypatch):
    monkeypatch.setenv("SOURCEWARD_MAX_IMAGE_PIXELS", "99")
    with pytest.raises(
        InputError, match=r"has 100 pixels, and the limit is 99\. Set SOURCEWARD_MAX_IMAGE_PIX"
    ):
        decode_image(png(10, 10), SMALL)
    with pytest.raises(InputError, match="expected `size` has 100 pixels"):
        Geometry(10, 10)


@pytest.mark.parametrize(
    "data", [b"", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"\x89PNG\r\n\x1a\n"]
)
def test_other_formats_are_not_decoded(data):
    with pytest.raises(InputError, match="cannot identify image file"):
        decode_image(data, SMALL)


def test_a_jpeg_of_endless_scans():
    stream = io.BytesIO()
    Image.new("L", (8, 8)).save(stream, "JPEG")
    scan = stream.getvalue()[stream.getvalue().index(b"\xff\xda") : -2]
    with pytest.raises(InputError, match="more than 500 scans"):
        decode_image(stream.getvalue()[:-2] + scan * 600 + b"\xff\xd9", SMALL)


def test_a_table_that_names_pipes_and_devices(tmp_path):
    (tmp_path / "a.png").write_bytes(png(9, 9))
    os.mkfifo(tmp_path / "pipe.png")
    names = ["a.png", "pipe.png", os.devnull, "x" * 300, "missing.png", "null\0.png"]
    rows = [f"{name},d{i % 2},c" for i, name in enumerate(names)]
    (tmp_path / "table.csv").write_text("\n".join(["path,domain,label", *rows]) + "\n")
    found = [sample.value for sample in find_inputs("image", [tmp_path / "table.csv"])]
    assert [isinstance(value, Failure) for value in found] == [False] + [True] * 5
    assert "it is a pipe" in found[1].reason
    assert "it is a device" in found[2].reason
    data = open_dataset(tmp_path / "table.csv")
    assert len(data) == 1
    assert len([p for p in data.problems if p.kind in ("missing_file", "empty_file")]) == 5


def test_a_root_confines_the_paths_of_a_table(tmp_path):
    (tmp_path / "in").mkdir()
    for folder in (tmp_path, tmp_path / "in"):
        (folder / "a.png").write_bytes(png(9, 9))
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "a.png")
    table = tmp_path / "table.csv"
    table.write_text("path,domain,label\na.png,d,c\n")
    root = str(tmp_path / "in")
    assert open_dataset(table, root=root).items[0].path == str(tmp_path / "in" / "a.png")
    for path in ("../a.png", str(tmp_path / "a.png"), "link.png"):
        table.write_text(f"path,domain,label\n{path},d,c\n")
        with pytest.raises(InputError, match="is outside of the root"):
            open_dataset(table, root=root)
        (sample,) = find_inputs("image", [table], root=root)
        assert "is outside of the root" in sample.value.reason
    with pytest.raises(InputError, match="found no folder"):
        open_dataset(table, root=str(tmp_path / "none"))


def tar_of(path: Path, names: list[str]) -> Path:
    with tarfile.open(path, "w") as archive:
        for number, name in enumerate(names):
            member = tarfile.TarInfo(name)
            data = png(9 + number, 9)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_a_name_twice_in_a_tar_means_the_later_one(tmp_path):
    path = tar_of(tmp_path / "a.tar", ["d/c/1.png", "d/c/1.png", "e/c/1.png"])
    data = open_dataset(path)
    assert data.ids == ("d/c/1.png", "e/c/1.png")
    with Image.open(io.BytesIO(data.items[0].read())) as image:
        assert image.width == 10


def with_size(path: Path, field: bytes, header: int = 0) -> Path:
    """Write another size to a header of a tar, with the right checksum."""
    data = bytearray(path.read_bytes())
    data[header + 124 : header + 136] = field
    data[header + 148 : header + 156] = b" " * 8
    data[header + 148 : header + 156] = b"%06o\0 " % sum(data[header : header + 512])
    path.write_bytes(data)
    return path


NEGATIVE = b"\xff" * 4 + (-512).to_bytes(8, "big", signed=True)
HUGE = b"\x80" + (2**80).to_bytes(11, "big")


@pytest.mark.parametrize("field", [NEGATIVE, HUGE, b"77777777777\0", b"notanumber\0\0"])
@pytest.mark.parametrize("kind", ["0", "L", "x", "S"])
@pytest.mark.parametrize("name", [b"d/c/1.png", b"e/c/2.png"], ids=["first", "second"])
def test_tar_headers_that_lie(tmp_path, field, kind, name):
    path = tar_of(tmp_path / "a.tar", ["d/c/1.png", "e/c/2.png"])
    data = bytearray(path.read_bytes())
    header = data.index(name)
    data[header + 156 : header + 157] = kind.encode()
    path.write_bytes(data)
    started = time.monotonic()
    with pytest.raises(InputError, match="cannot be read as one"):
        list(islice(list_tar(with_size(path, field, header)), 9))  # none reads the same header forever
    assert time.monotonic() - started < 5


def test_a_damaged_header_is_not_the_end_of_a_tar(tmp_path):
    path = tar_of(tmp_path / "a.tar", ["d/c/1.png", "e/c/2.png"])
    data = bytearray(path.read_bytes())
    second = data.index(b"e/c/2.png")
    data[second + 148] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="is damaged"):
        open_dataset(path)


def test_names_that_are_not_utf8_and_loops_of_links(tmp_path):
    image_folder(tmp_path / "images")
    for old, new in ((b"a/x/0.png", b"a/x/\xff.png"), (b"b", b"b\xe9")):
        base = os.fsencode(tmp_path / "images")
        os.rename(os.path.join(base, old), os.path.join(base, new))
    (tmp_path / "images" / "c" / "x" / "loop.png").symlink_to("loop.png")
    (tmp_path / "images" / "c" / "y" / "up").symlink_to(tmp_path / "images")
    data = open_dataset(tmp_path / "images")
    assert data.domain_names == ("a", "b\\udce9", "c")
    assert "a/x/\\udcff.png" in data.ids
    assert all(len(item.read()) for item in data.items)
    assert "\n".join((*data.ids, *data.domain_names)).encode()
    names = [sample.name for sample in find_inputs("image", [tmp_path / "images"])]
    assert len(names) == 54
    assert "\n".join(names).encode()


def features(path: Path, **others: np.ndarray) -> Path:
    arrays = {
        "features": np.random.default_rng(0).normal(size=(12, 3)),
        "label": np.arange(12) % 2,
        "domain": np.arange(12) % 3,
    }
    np.savez(path, **{**arrays, **others})
    return path


@pytest.mark.parametrize("name", ["classes", "domains"])
def test_names_that_are_one_scalar(tmp_path, name):
    with pytest.raises(InputError, match="to be lists of names"):
        open_dataset(features(tmp_path / "f.npz", **{name: np.array("dog")}))


def test_complex_features_are_refused(tmp_path):
    rows = np.ones((12, 3)) + 1j
    with pytest.raises(InputError, match="real numbers"):
        open_dataset(features(tmp_path / "f.npz", features=rows))
    np.save(tmp_path / "x.npy", rows)
    with pytest.raises(InputError, match="real numbers"):
        list(find_inputs("features", [tmp_path / "x.npy"]))


def test_a_small_archive_of_large_arrays(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCEWARD_MAX_EXPANDED_BYTES", "1000000")
    np.savez_compressed(tmp_path / "f.npz", features=np.zeros((1000, 500)))
    assert (tmp_path / "f.npz").stat().st_size < 10_000
    for read in (open_dataset, lambda path: list(find_inputs("features", [path]))):
        with pytest.raises(InputError, match="SOURCEWARD_MAX_EXPANDED_BYTES"):
            read(tmp_path / "f.npz")


def test_an_array_whose_header_states_more_than_there_is(tmp_path):
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 64), }"
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"
    (tmp_path / "x.npy").write_bytes(header + bytes(64))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("features.npy", header + bytes(64))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(InputError, match="no readable"):
            list(find_inputs("features", [tmp_path / name]))


@pytest.mark.parametrize(("kind", "size"), [("F4", 24), ("F6_E2M3", 36), ("F9", 48), ("C64", 384)])
def test_safetensors_of_types_that_numpy_lacks(tmp_path, kind, size):
    where = {"dtype": kind, "shape": [12, 4], "data_offsets": [0, size]}
    header = json.dumps({"features": where}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(InputError, match=r"is not a complete \.safetensors file|has no 'label'"):
        open_dataset(path)
    with pytest.raises(InputError, match=r"is not a complete \.safetensors file|real numbers"):
        list(find_inputs("features", [path]))
    with pytest.raises(InputError, match=r"Could not read weights|dense real numbers"):
        create_backbone("tiny:conv", weights=path)


def test_parquet_with_dates_out_of_range_and_invalid_text(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    late = arrow.array([2**60, 1], arrow.timestamp("ms"))
    words = arrow.Array.from_buffers(
        arrow.string(), 2, [None, arrow.py_buffer(np.array([0, 1, 2], "<i4")), arrow.py_buffer(b"\xff\xfe")]
    )
    for column in (late, words):
        table = arrow.table({"text": column, "domain": ["a", "b"], "label": ["x", "y"]})
        parquet.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(InputError, match="cannot be read as Parquet"):
            open_dataset(tmp_path / "t.parquet")


def test_parquet_of_one_value_repeated(tmp_path, monkeypatch):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("SOURCEWARD_MAX_EXPANDED_BYTES", "1000000")
    column = ["same"] * 100_000
    parquet.write_table(
        arrow.table({"text": column, "domain": column, "label": column}), tmp_path / "t.parquet"
    )
    with pytest.raises(InputError, match="SOURCEWARD_MAX_EXPANDED_BYTES"):
        open_dataset(tmp_path / "t.parquet")
