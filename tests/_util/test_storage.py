"""One file, whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sourceward import EnergyAdapter, InputError
from sourceward._util.storage import load_tensors, save_tensors
from tests.helpers import make_generator

TENSORS = {
    "float": torch.randn(3, 4, generator=make_generator()),
    "half": torch.randn(5, generator=make_generator()).to(torch.bfloat16),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "flags": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
}
METADATA = {"name": "ant", "numbers": [1, 2.5, None], "nested": {"b": True}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "er" / "file.safetensors"
    save_tensors(path, TENSORS, METADATA)
    return path


def test_round_trip(saved):
    tensors, metadata = load_tensors(saved)
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_the_same_content_is_the_same_file(saved):
    before = saved.read_bytes()
    save_tensors(saved, dict(reversed(TENSORS.items())), dict(reversed(METADATA.items())))
    assert saved.read_bytes() == before


def test_tensor_views_and_graphs_are_stored_as_values(tmp_path):
    matrix = torch.arange(6.0).reshape(2, 3).requires_grad_()
    save_tensors(tmp_path / "file", {"a": matrix.T, "b": matrix}, {})
    tensors, _ = load_tensors(tmp_path / "file")
    assert torch.equal(tensors["a"], matrix.T)
    assert not tensors["b"].requires_grad


def test_the_file_can_be_read_by_whom_the_umask_allows(saved):
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o666 & ~umask


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def other_text(data: bytes) -> bytes:
    assert b"ant" in data
    return data.replace(b"ant", b"bee")


DAMAGE = {
    "cut in half": cut,
    "cut by one byte": lambda data: data[:-1],
    "a flipped bit": flip,
    "another word": other_text,
    "empty": lambda data: b"",
    "noise": lambda data: bytes(torch.randint(256, (500,), generator=make_generator()).tolist()),
    "text": lambda data: b"{'not': 'a model'}\n",
    "half a header": lambda data: data[:40],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_noticed(saved, damage):
    saved.write_bytes(damage(saved.read_bytes()))
    with pytest.raises(InputError, match=r"is damaged or no safetensors file .* or restore a copy") as caught:
        load_tensors(saved)
    assert "\n" not in str(caught.value)


def test_files_of_others_are_refused(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "theirs", metadata={"format": "pt"})
    with pytest.raises(InputError, match="is a safetensors file, but not one that sourceward wrote"):
        load_tensors(tmp_path / "theirs")
    with pytest.raises(InputError, match=r"Expected a sourceward file at .* but found none"):
        load_tensors(tmp_path / "nothing")
    with pytest.raises(InputError, match="to be a regular file, but it is a folder"):
        load_tensors(tmp_path)


def test_an_estimator_is_not_loaded_from_something_else(saved):
    with pytest.raises(InputError, match=r"Expected an EnergyAdapter in .* but it holds something else"):
        EnergyAdapter.load(saved)


@pytest.mark.parametrize("meta", [{}, {"params": {"no_such_setting": 1}}])
def test_an_estimator_of_another_version_is_refused(saved, meta):
    save_tensors(saved, TENSORS, {"kind": "EnergyAdapter", "version": "9.9", **meta})
    with pytest.raises(InputError, match=r"written by sourceward 9\.9, which this version cannot read"):
        EnergyAdapter.load(saved)


def fail(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_rename_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    before = saved.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        with pytest.raises(OSError, match="No space left"):
            save_tensors(saved, {"a": torch.ones(3)}, {})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_half_written_file_leaves_the_old_one_and_nothing_else(saved):
    resource = pytest.importorskip("resource")
    before, limits = saved.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            save_tensors(saved, {"a": torch.ones(3000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    load_tensors(saved)


def test_metadata_that_is_no_json_writes_nothing(tmp_path):
    with pytest.raises(TypeError):
        save_tensors(tmp_path / "file", TENSORS, {"a": object()})
    assert not list(tmp_path.iterdir())
