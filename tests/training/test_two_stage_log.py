"""What the second stage of a fit writes down while it trains."""

import json
import math
from importlib import import_module

import pytest

from sourceward.functional import Loss
from sourceward.training import two_stage
from tests.tiny_runs import fit_tiny, kill_at, tiny_images, weights_of
from tests.validation.test_crossfit import four_domains

LONG = {"max_iter": 65}
"""A checkpoint at 50, and looks at 20, 40, 60 and 65."""


def lines_of(run, kind):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == "heads" and kind in line]


class Board:
    """Stands in for TensorBoard's writer."""

    def __init__(self):
        self.scalars = {}

    def add_scalar(self, name, value, iteration):
        self.scalars.setdefault(name, []).append((iteration, value))

    def take_place(self, patch):
        module = import_module("sourceward.fitting")  # the package has a function of that name
        patch.setattr(module, "open_board", lambda path: self)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run, and what TensorBoard was given."""
    board, out = Board(), tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        board.take_place(patch)
        fit_tiny(tiny_images(), out, settings=LONG, tensorboard=True)
    return out, board.scalars


def test_the_second_stage_tells_its_loss_by_parts(whole):
    lines = lines_of(whole[0], "loss")
    assert [line["iteration"] for line in lines] == [20, 40, 60, 65]
    for line in lines:
        assert line["loss"].keys() == {*Loss._fields, "energy_gap"}
        assert all(math.isfinite(value) for value in line["loss"].values())
        assert line["loss"]["energy_gap"] == -line["loss"]["contrast"]
        assert line["per_second"] > 0


def test_tensorboard_is_told_the_same(whole):
    run, scalars = whole
    for kind in ("loss", "validation"):
        lines = lines_of(run, kind)
        names = [name for name, value in lines[0][kind].items() if isinstance(value, float)]
        assert len(names) >= 2
        for name in names:
            told = [(line["iteration"], line[kind][name]) for line in lines]
            assert scalars[f"heads/{kind}/{name}"] == told


def after_all(patch):
    """Killed with everything recorded and the model not yet written."""

    def killed(*_):
        raise KeyboardInterrupt

    patch.setattr(two_stage.Model, "save", killed)


@pytest.mark.parametrize(
    ("kill", "left"),
    [(lambda patch: kill_at(patch, 62), [20, 40, 60]), (after_all, [20, 40, 60, 65])],
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
    for kind in ("loss", "validation"):
        lines = [[(line["iteration"], line[kind]) for line in lines_of(r, kind)] for r in (run, whole[0])]
        assert lines[0] == lines[1]


@pytest.mark.parametrize("crossfit", [False, True])
def test_models_of_pretend_targets_write_nothing(crossfit, tmp_path, monkeypatch):
    board, options = Board(), {"allow_missing": True, "tensorboard": True}
    board.take_place(monkeypatch)
    settings = {"num_steps": "auto", "crossfit": crossfit}
    model = fit_tiny(four_domains(), tmp_path, target="d", settings=settings, **options)
    assert model.info["expected_gain"] is not None
    told = [(line["iteration"], line["loss"]["total"]) for line in lines_of(tmp_path, "loss")]
    assert board.scalars["heads/loss/total"] == told
    assert [iteration for iteration, _ in told] == [12]
