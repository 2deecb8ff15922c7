"""The reader and the writer of files refuse what is not a regular file, and never wait or read forever."""

import os
import subprocess
import sys

import pytest

from sourceward import InputError
from sourceward._util.reading import check_expanded, inside, open_regular, read_regular, regular_size
from sourceward._util.storage import atomic_file, check_target, open_folder, write_whole


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_pipe_and_a_device_are_refused_before_they_are_opened(pipe):
    for path, what in ((pipe, "a pipe"), (os.devnull, "a device"), (pipe.parent, "a folder")):
        with pytest.raises(InputError, match=f"to be a regular file, but it is {what}"):
            read_regular(path)
        assert regular_size(path) is None


def test_a_link_to_a_pipe_is_a_pipe(pipe):
    (pipe.parent / "link").symlink_to(pipe)
    with pytest.raises(InputError, match="a pipe"):
        open_regular(pipe.parent / "link")


def test_no_more_bytes_than_the_limit(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(1000))
    monkeypatch.setenv("SOURCEWARD_MAX_IMAGE_BYTES", "999")
    with pytest.raises(InputError, match=r"has 1,000 bytes, .* Set SOURCEWARD_MAX_IMAGE_BYTES"):
        read_regular(tmp_path / "file", "image_bytes")
    assert len(read_regular(tmp_path / "file", "image_bytes", offset=990, size=10**12)) == 10
    monkeypatch.setenv("SOURCEWARD_MAX_IMAGE_BYTES", "a lot")
    with pytest.raises(InputError, match="to be a whole number above 0, but got 'a lot'"):
        read_regular(tmp_path / "file", "image_bytes")


def test_a_file_of_the_system_without_a_size_reads_as_empty():
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs /proc")
    assert read_regular("/proc/self/maps") == b""


def test_decompression_is_bounded(monkeypatch):
    monkeypatch.setenv("SOURCEWARD_MAX_EXPANDED_BYTES", "1000")
    check_expanded("file", 5000, 6000)  # a large file may hold as much
    with pytest.raises(InputError, match="SOURCEWARD_MAX_EXPANDED_BYTES"):
        check_expanded("file", 100, 1101)


@pytest.mark.parametrize("name", ["x" * 300, "null\0", "loop"])
def test_names_that_cannot_be(tmp_path, name):
    if name == "loop":
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError):
        read_regular(tmp_path / name)
    assert regular_size(tmp_path / name) is None
    assert not inside(tmp_path / "other", tmp_path / name)
    with pytest.raises(InputError, match="Expected a file that can be written"):
        check_target(tmp_path / name)


def test_only_a_regular_file_is_replaced(pipe):
    (pipe.parent / "link").symlink_to(pipe)
    for path in (pipe, pipe.parent / "link", pipe.parent):
        with pytest.raises(InputError, match=r"it is no regular file|it is a folder"):
            write_whole(path, "text")
    assert pipe.is_fifo()
    assert (pipe.parent / "link").is_symlink()
    assert sorted(path.name for path in pipe.parent.iterdir()) == ["link", "pipe"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "outside").write_text("old")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "p.csv").symlink_to(tmp_path / "outside")
    write_whole(tmp_path / "out" / "p.csv", "new")
    assert (tmp_path / "outside").read_text() == "old"
    assert (tmp_path / "out" / "p.csv").read_text() == "new"


def test_long_names_leave_room_for_the_temporary_file(tmp_path):
    path = tmp_path / ("é" * 125)
    write_whole(path, "text")
    assert path.read_text() == "text"


WRITE = """
import sys, time
from sourceward._util.storage import atomic_file
with atomic_file(sys.argv[1]) as stream:
    stream.write(b"part")
    print("open", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_is_removed_and_a_living_one_is_not_disturbed(tmp_path):
    path = tmp_path / "p.csv"
    children = [
        subprocess.Popen([sys.executable, "-c", WRITE, path], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
        assert len(list(tmp_path.iterdir())) == 2
        children[0].kill()
        children[0].wait()
        write_whole(path, "whole")
        assert len(list(tmp_path.iterdir())) == 2  # the file, and that of the living process
        assert path.read_text() == "whole"
    finally:
        for child in children:
            child.kill()
            child.wait()
            child.stdout.close()
    write_whole(path, "again")
    assert [p.name for p in tmp_path.iterdir()] == ["p.csv"]


def test_other_hidden_files_are_left_alone(tmp_path):
    for name in (".p.csv.old", ".p.csv.swp", ".p.csv"):
        (tmp_path / name).write_text("mine")
    with atomic_file(tmp_path / "p.csv") as stream:
        stream.write(b"x")
    assert {p.name for p in tmp_path.iterdir()} == {"p.csv", ".p.csv.old", ".p.csv.swp", ".p.csv"}


READ_ONLY = """
import os, sys
from sourceward._util.errors import InputError
from sourceward._util.storage import check_target, open_folder
if os.getuid() == 0:
    os.setuid(65534)
for check, path in ((check_target, sys.argv[1] + "/new/p.csv"), (open_folder, sys.argv[1] + "/new")):
    try:
        check(path)
    except InputError as error:
        print(error)
"""


def test_a_read_only_folder_is_refused_before_the_work(tmp_path):
    """As another user: the superuser may write everywhere."""
    tmp_path.chmod(0o555)
    if os.getuid() == 0:
        for folder in list(tmp_path.parents)[:-2]:
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run([sys.executable, "-c", READ_ONLY, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no permission to write in" in done.stdout
    assert "to be a folder that can be written" in done.stdout


def test_a_folder_with_an_impossible_name(tmp_path):
    for name in ("x" * 300, "null\0"):
        with pytest.raises(InputError, match="folder"):
            open_folder(tmp_path / name)
