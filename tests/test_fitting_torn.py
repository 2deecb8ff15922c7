"""A damaged file of an unfinished run: the error names it and its remedy, or the file is trained again."""

import pytest

from sourceward._util.errors import InputError
from sourceward.training.finetune import FineTuner
from sourceward.training.trainer import Trainer
from tests.tiny_runs import fit_tiny, kill_at, tiny_features, tiny_images, weights_of

JOINT = {"settings": {"recipe": "joint"}}
LONG = {"settings": {"max_iter": 65}}


def killed(data, run, options, learner, iteration, monkeypatch):
    with monkeypatch.context() as patch:
        kill_at(patch, iteration, learner)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(data, run, **options)


def tear(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def same_run(run, whole):
    assert weights_of(run) == weights_of(whole)
    kinds = ('"validation"', '"loss"')
    lines = [
        [(folder / "metrics.jsonl").read_text().count(kind) for kind in kinds] for folder in (run, whole)
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("options", "learner", "file"),
    [
        ({}, FineTuner, "checkpoint.safetensors"),
        ({}, Trainer, "finetuned.safetensors"),
        (JOINT, Trainer, "checkpoint.safetensors"),
    ],
    ids=["fine-tuning", "fine-tuned backbone", "joint"],
)
def test_a_torn_file_is_named_and_without_it_the_run_goes_on(options, learner, file, tmp_path, monkeypatch):
    run = tmp_path / "run"
    killed(tiny_images(), run, options, learner, 8, monkeypatch)
    tear(run / file)
    with pytest.raises(InputError, match=f"{file}' is damaged.*Remove it to start the training again"):
        fit_tiny(tiny_images(), run, **options)
    (run / file).unlink()
    fit_tiny(tiny_images(), run, **options)
    fit_tiny(tiny_images(), tmp_path / "whole", **options)
    same_run(run, tmp_path / "whole")


@pytest.mark.parametrize("data", [tiny_features, tiny_images])
@pytest.mark.parametrize("kind", ["torn", "foreign"])
def test_a_checkpoint_of_heads_that_cannot_be_used_is_trained_again(data, kind, tmp_path, monkeypatch):
    run, heads = tmp_path / "run", tmp_path / "run/heads.safetensors"
    killed(data(), run, LONG, Trainer, 62, monkeypatch)
    if kind == "torn":
        tear(heads)
    else:
        other = tmp_path / "other"
        killed(data(), other, {**LONG, "seed": 1}, Trainer, 62, monkeypatch)
        heads.write_bytes((other / "heads.safetensors").read_bytes())
    fit_tiny(data(), run, **LONG)
    fit_tiny(data(), tmp_path / "whole", **LONG)
    same_run(run, tmp_path / "whole")
    assert not heads.exists()
