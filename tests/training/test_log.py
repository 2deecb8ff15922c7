"""metrics.jsonl and TensorBoard: what a fit logs, once, also when it was killed."""

import json
import math
from importlib import import_module

import pytest

from sourceward.functional import Loss
from sourceward.model import Model
from tests.tiny_runs import fit_tiny, four_domains, kill_at, tiny_images, weights_of

LONG = {"max_iter": 65}
"""A checkpoint at 50; the loss is logged at 20, 40, 60 and 65."""


def lines_of(run, kind, stage="heads"):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == stage and kind in line]


class Board:
    """Stands in for TensorBoard's writer."""

    def __init__(self):
        self.scalars = {}

    def add_scalar(self, name, value, iteration):
        self.scalars.setdefault(name, []).append((iteration, value))

    def take_place(self, patch):
        module = import_module("sourceward.fitting.pipeline")
        patch.setattr(module, "open_board", lambda path: self)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run, and what TensorBoard received."""
    board, out = Board(), tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        board.take_place(patch)
        fit_tiny(tiny_images(), out, settings=LONG, tensorboard=True)
    return out, board.scalars


def test_the_loss_is_logged_by_its_terms(whole):
    lines = lines_of(whole[0], "loss")
    assert [line["iteration"] for line in lines] == [20, 40, 60, 65]
    for line in lines:
        assert line["loss"].keys() == {*Loss._fields, "energy_gap"}
        assert all(math.isfinite(value) for value in line["loss"].values())
        assert line["loss"]["energy_gap"] == -line["loss"]["contrast"]
        assert line["per_second"] > 0


@pytest.mark.parametrize(
    ("stage", "kind"), [("heads", "loss"), ("finetune", "loss"), ("finetune", "validation")]
)
def test_tensorboard_receives_the_same(whole, stage, kind):
    run, scalars = whole
    lines = lines_of(run, kind, stage)
    names = [name for name, value in lines[0][kind].items() if isinstance(value, float)]
    assert names
    for name in names:
        logged = [(line["iteration"], line[kind][name]) for line in lines]
        assert scalars[f"{stage}/{kind}/{name}"] == logged


def at_the_end(patch):
    """Killed when everything is trained and the model is not yet written."""

    def killed(*_):
        raise KeyboardInterrupt

    patch.setattr(Model, "save", killed)


@pytest.mark.parametrize(
    ("kill", "left"),
    [(lambda patch: kill_at(patch, 62), [20, 40, 60]), (at_the_end, [20, 40, 60, 65])],
    ids=["after a checkpoint", "at the end"],
)
def test_killed_and_resumed_every_line_is_there_once(kill, left, whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill(patch)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_images(), run, settings=LONG)
    assert [line["iteration"] for line in lines_of(run, "loss")] == left
    fit_tiny(tiny_images(), run, settings=LONG)
    assert weights_of(run) == weights_of(whole[0])
    for stage in ("finetune", "heads"):
        lines = [[(x["iteration"], x["loss"]) for x in lines_of(r, "loss", stage)] for r in (run, whole[0])]
        assert lines[0] == lines[1]


@pytest.mark.parametrize("options", [{"freeze": True}, {}], ids=["frozen", "fine-tuned"])
def test_models_without_a_held_out_source_log_nothing(options, tmp_path, monkeypatch):
    board = Board()
    board.take_place(monkeypatch)
    settings = {"num_steps": "auto"} | ({"fourier_copies": False} if options else {})
    model = fit_tiny(
        four_domains(),
        tmp_path,
        target="d",
        settings=settings,
        allow_missing=True,
        tensorboard=True,
        **options,
    )
    assert model.info["expected_gain"] is not None
    logged = [(line["iteration"], line["loss"]["total"]) for line in lines_of(tmp_path, "loss")]
    assert board.scalars["heads/loss/total"] == logged
    assert [iteration for iteration, _ in logged] == [12]
    finetuned = [line["iteration"] for line in lines_of(tmp_path, "validation", "finetune")]
    assert finetuned == ([] if options else [6, 12])
