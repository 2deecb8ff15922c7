"""A grid that is stopped, fails in parts or shares its device: what is kept, and what is tried again."""

import shutil
from dataclasses import replace

import pytest
import torch

from sourceward.bench.protocol.grid import bench_methods
from sourceward.bench.protocol.methods import parse_methods
from sourceward.report.grid import grid_page, grid_table, remarks, training_table
from sourceward.training.methods import Mixup
from tests.bench.protocol.test_grid import plan
from tests.tiny_runs import image_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(image_folder(tmp_path_factory.mktemp("data") / "images"))


def test_finished_runs_of_a_stopped_grid_are_summarised(folder, tmp_path):
    bench_methods(plan(folder), ["erm"], tmp_path)
    bench_methods(plan(folder, targets=("b",)), ["mixup"], tmp_path)
    new = []
    results = bench_methods(plan(folder), ["erm", "mixup", "cutmix"], tmp_path, workers=0, on_run=new.append)
    assert not new
    erm, mixup, cutmix = (own["unfinished"] for own in results["methods"])
    assert erm < mixup < cutmix
    results = {"command": "sourceward bench images --jobs 0", **results}
    rows = {row[0]: row for row in grid_table(results).rows}
    assert "targets" not in rows["erm"][1]
    assert rows["mixup"][1].endswith("(1 target)")
    assert rows["cutmix"][1:] == ["-"] * (len(rows["erm"]) - 1)
    assert training_table(results).strong == [0]
    page = grid_page(results)
    assert "No run finished of cutmix." in page.notes
    assert "mixup" not in page.headline  # a mean over fewer targets is of another thing


def test_a_method_that_fails_leaves_the_others_and_is_tried_again(folder, tmp_path, monkeypatch):
    def too_large(*args):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Mixup, "image_loss", too_large)
    one = plan(folder, targets=("b",))
    names = ["mixup", "erm"]
    mixup, erm = bench_methods(one, names, tmp_path, cost=False)["methods"]
    assert {run["reason"] for run in mixup["failed"]} == {"OutOfMemoryError: CUDA out of memory."}
    assert mixup["table"] == []
    assert len(erm["table"]) == 5
    assert mixup["unfinished"] == erm["unfinished"] == 0
    later = bench_methods(one, names, tmp_path, workers=0, cost=False)["methods"]
    assert [own["failed"] for own in later] == [mixup["failed"], erm["failed"]]  # the reasons stay
    monkeypatch.undo()
    new = []
    mixup, erm = bench_methods(one, names, tmp_path, on_run=new.append, cost=False)["methods"]
    assert {run["trained_by"] for run in new} == {"mixup"}  # what does not apply to erm is known
    assert len(mixup["table"]) == 5
    assert {run["method"] for run in mixup["failed"]} == {"generated_classifier"}


def test_results_are_handed_on_while_runs_are_missing(folder, tmp_path, monkeypatch):
    from sourceward.bench.protocol import plan as protocol

    monkeypatch.setattr(protocol, "RESULTS_EVERY", 0.0)
    monkeypatch.setattr(protocol, "SHARE", 1e6)
    seen = []
    last = bench_methods(plan(folder), ["erm", "mixup"], tmp_path, on_results=seen.append, cost=False)
    left = [sum(own["unfinished"] for own in results["methods"]) for results in seen]
    assert left == [15, 10, 5, 0]  # two methods, two targets, five adapters
    assert seen[-1] == last
    rows = {row[0]: row[1] for row in grid_table(seen[2]).rows}
    assert rows["mixup"].endswith("(1 target)")
    assert "Not finished: mixup, 1 of 2 targets." in remarks(seen[2])


def test_results_that_cannot_be_handed_on_stop_no_run(folder, tmp_path, monkeypatch):
    from sourceward.bench.protocol import plan as protocol

    def full(results):
        raise OSError("No space left on device")

    monkeypatch.setattr(protocol, "RESULTS_EVERY", 0.0)
    results = bench_methods(plan(folder), ["erm"], tmp_path, on_results=full, cost=False)
    assert results["methods"][0]["unfinished"] == 0


def test_cost_may_be_measured_later_and_stays(folder, tmp_path, monkeypatch):
    from sourceward.bench.protocol import cost

    names, one = ["erm", "mixup"], plan(folder, targets=("b",), methods=parse_methods(["none"]))

    def costs(**options):
        return [own["cost"] for own in bench_methods(one, names, tmp_path, **options)["methods"]]

    assert costs(cost=False) == [None, None]
    measured = costs(workers=0)
    assert measured[0]["ratio"] == 1
    assert measured[1]["iteration_ms"] > 0
    assert costs(cost=False) == measured
    settings = one.training.settings | {"finetune.batch_size": 3}
    smaller = replace(one, training=replace(one.training, settings=settings))
    (tmp_path / "methods").rename(tmp_path / "before")  # a folder of other settings would be refused
    found = bench_methods(smaller, names, tmp_path, workers=0, cost=False)["methods"]
    assert [own["cost"] for own in found] == [None, None]
    shutil.rmtree(tmp_path / "methods")
    (tmp_path / "before").rename(tmp_path / "methods")
    timings = iter([None, 2.0])
    monkeypatch.setattr(cost, "iteration_ms", lambda *given: next(timings) + 0)
    assert costs(workers=0) == measured, "without ERM there is no ratio"
    monkeypatch.setattr(cost, "versions", lambda: {"machine": "another"})
    assert costs(cost=False) == [None, None]
