"""Cells are computed again when code that they depend on has changed, and not when other code has."""

from dataclasses import replace
from pathlib import Path

import pytest

from sourceward._util.devices import choose_device
from sourceward.adaptation import ADAPTERS
from sourceward.bench import code
from sourceward.bench.jobs import Job
from sourceward.bench.specs import Spec
from sourceward.bench.training import Training


@pytest.fixture
def changed(monkeypatch):
    """Pretends that a file was edited."""

    def change(name):
        for cached in (code.code_version, code.adapter_version, code.imported):
            cached.cache_clear()
        read = Path.read_bytes
        assert (code.ROOT / name).is_file()
        monkeypatch.setattr(
            Path, "read_bytes", lambda path: read(path) + b"#" * path.samefile(code.ROOT / name)
        )

    yield change
    monkeypatch.undo()
    for cached in (code.code_version, code.adapter_version, code.imported):
        cached.cache_clear()


def within(rooms):
    return {file for room in rooms for file in code.files_of(room)}


def test_every_file_that_a_cell_runs_through_is_in_some_room():
    start = [code.ROOT / "bench/jobs.py", code.ROOT / "fitting/fit.py", code.ROOT / "model/evaluation.py"]
    found = set(code.needs(*start)) | set(start)
    left = found - within((*code.ROOMS, *code.RAW_ROOMS, *code.IDLE))
    assert not left, "say in bench/code.py whether numbers depend on them"
    assert all(within([room]) and within([room]) & found for room in (*code.ROOMS, *code.RAW_ROOMS))


def test_features_need_the_code_of_the_estimator_and_no_other_room():
    found = set(code.needs(code.ROOT / "estimator/estimator.py", code.ROOT / "bench/measures.py"))
    assert not found - within((*code.ROOMS, *code.IDLE, "nn/backbones", "data"))


def keys():
    one = Job("data", "data", "print", ("a",), (), 0, Training(), "runs")
    jobs = {"features": one, "raw": replace(one, raw=True)}
    return {
        (kind, name): job.cell_key("a", Spec(name)) for kind, job in jobs.items() for name in ("t3a", "tent")
    }


@pytest.mark.parametrize(
    ("file", "kinds", "adapters"),
    [
        ("estimator/estimator.py", {"features", "raw"}, {"t3a", "tent"}),
        ("fitting/finetune.py", {"raw"}, {"t3a", "tent"}),
        ("fitting/methods/mixstyle.py", {"raw"}, {"t3a", "tent"}),
        ("fitting/fit.py", {"raw"}, {"t3a", "tent"}),
        ("data/augment.py", {"raw"}, {"t3a", "tent"}),
        ("data/views.py", {"raw"}, {"t3a", "tent"}),
        ("nn/backbones/from_timm.py", {"raw"}, {"t3a", "tent"}),
        ("adapters/t3a.py", {"features", "raw"}, {"t3a"}),
        ("adapters/supports.py", {"features", "raw"}, {"t3a"}),
        ("adapters/online.py", {"features", "raw"}, {"tent"}),
        ("cli/main.py", set(), set()),
        ("report/page.py", set(), set()),
    ],
)
def test_a_change_makes_other_cells_of_what_depends_on_it(file, kinds, adapters, changed):
    before = keys()
    changed(file)
    after = keys()
    assert {key for key in before if before[key] != after[key]} == {(k, a) for k in kinds for a in adapters}


def test_every_adapter_has_a_version():
    for name in ADAPTERS:
        assert code.adapter_version(name)


def test_weights_count_by_what_is_in_the_file_and_the_device_by_which_it_is(tmp_path):
    files = [tmp_path / name for name in ("a.safetensors", "b.safetensors", "c.safetensors")]
    for file, content in zip(files, (b"one", b"one", b"other")):
        file.write_bytes(content)
    one, same, other = (Training(weights=str(file)).identity() for file in files)
    assert one == same != other
    auto = choose_device("auto").type
    assert Training(device=auto).identity() == Training(device="auto").identity()
