"""A checkpoint that was cut in half: one sentence, and what it says to do helps."""

import pytest

from sourceward._util.errors import InputError
from sourceward.training.finetune import FineTuner
from sourceward.training.loop import Trainer
from tests.tiny_runs import fit_tiny, kill_at, tiny_features, tiny_images, weights_of

JOINT = {"settings": {"recipe": "joint"}}


@pytest.mark.parametrize(
    ("data", "options", "learner", "file"),
    [
        (tiny_images, {}, FineTuner, "checkpoint.safetensors"),
        (tiny_images, {}, Trainer, "finetuned.safetensors"),
        (tiny_images, JOINT, Trainer, "checkpoint.safetensors"),
        (tiny_features, {}, Trainer, "checkpoint.safetensors"),
    ],
    ids=["stage 1", "between the stages", "joint", "features"],
)
def test_a_torn_checkpoint(data, options, learner, file, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(patch, 8, learner)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(data(), run, **options)
    torn = run / file
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    with pytest.raises(InputError, match=f"{file}' is damaged.*Remove it, and the training starts anew"):
        fit_tiny(data(), run, **options)
    torn.unlink()
    fit_tiny(data(), run, **options)
    fit_tiny(data(), tmp_path / "whole", **options)
    assert weights_of(run) == weights_of(tmp_path / "whole")
    lines = (run / "metrics.jsonl").read_text()
    assert lines.count('"validation"') == (tmp_path / "whole/metrics.jsonl").read_text().count('"validation"')
