"""Runs are computed again when code that they depend on has changed."""

import importlib.util
import os
import shutil
import sys

import pytest

from sourceward._util.devices import choose_device
from sourceward.bench.protocol import provenance
from sourceward.bench.protocol.jobs import Job
from sourceward.bench.protocol.methods import Method
from sourceward.bench.protocol.training import Training


def run_key(name="t3a"):
    return Job("data", "data", "print", ("a",), (), 0, Training(), "models").run_key("a", Method(name))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package's code that may be changed."""
    copy = tmp_path / "sourceward"
    shutil.copytree(provenance.package_folder(), copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "package_folder", lambda: copy)
    provenance.code_version.cache_clear()
    yield copy
    provenance.code_version.cache_clear()


@pytest.mark.parametrize(
    ("file", "counts"), [("algorithm.py", True), ("cli/main.py", False), ("report/page.py", False)]
)
def test_a_change_of_code_makes_other_runs(file, counts, package):
    before = run_key()
    (package / file).write_text((package / file).read_text() + "# changed\n")
    provenance.code_version.cache_clear()
    assert (run_key() != before) == counts


def test_a_users_own_adapter_counts(tmp_path, monkeypatch):
    file = tmp_path / "own_adapter.py"

    def load(text):
        provenance.adapter_version.cache_clear()
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("own_adapter", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "own_adapter", module)
        spec.loader.exec_module(module)
        return module.Own

    found = []
    for text in ("class Own: pass\n", "class Own: more = 1\n"):
        monkeypatch.setattr(provenance, "ADAPTERS", {"own": load(text)})
        found.append(run_key("own"))
    assert found[0] != found[1]


def test_weights_count_by_what_is_in_the_file_and_the_device_by_which_it_is(tmp_path):
    files = [tmp_path / name for name in ("a.safetensors", "b.safetensors", "c.safetensors")]
    for file, content in zip(files, (b"one", b"one", b"other")):
        file.write_bytes(content)
    one, same, other = (Training(weights=str(file)).identity() for file in files)
    assert one == same != other
    auto = choose_device("auto").type
    assert Training(device=auto).identity() == Training(device="auto").identity()


def test_the_content_of_each_of_several_files_of_weights_counts(tmp_path):
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    one.write_bytes(b"1")
    other.write_bytes(b"2")
    training = Training(weights=f"{one},{other}")
    before = training.identity()["weights"]
    assert before.count("a file of hash") == 2
    other.write_bytes(b"changed")
    os.utime(other, ns=(0, 0))
    assert training.identity()["weights"] != before
