"""The mean of several fine-tunings."""

import pytest
import torch

from sourceward._util.errors import InputError
from sourceward.training import members
from sourceward.training.finetune import FineTuner
from tests.tiny_runs import fit_tiny, kill_after, tiny_images, tiny_texts, weights_of

TWO = {"finetune.members": 2}


@pytest.mark.parametrize("data", [tiny_images, tiny_texts], ids=["images", "texts"])
def test_the_backbone_is_the_mean_of_its_members(data, tmp_path, monkeypatch):
    seen, real = [], members.finetune

    def finetune(data, backbone, context, settings):
        classifier, info = real(data, backbone, context, settings)
        state = {name: value.clone() for name, value in classifier.state_dict().items()}
        seen.append((context.seed, state))
        return classifier, info

    monkeypatch.setattr(members, "finetune", finetune)
    model = fit_tiny(data(), tmp_path / "run", settings=TWO)
    (first_seed, one), (second_seed, other) = seen
    assert first_seed != second_seed
    assert any(not torch.equal(one[name], other[name]) for name in one)
    for name, value in model.backbone.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, (one[f"backbone.{name}"] + other[f"backbone.{name}"]) / 2)
    assert len(model.info["metrics"]["finetune"]["members"]) == 2
    assert not (tmp_path / "run" / "members").exists()


@pytest.mark.parametrize("steps", [5, 12, 18])
def test_killed_anywhere_it_ends_with_the_same_bits(steps, tmp_path, monkeypatch):
    fit_tiny(tiny_images(), tmp_path / "whole", settings=TWO)
    with monkeypatch.context() as patch:
        kill_after(patch, steps, FineTuner)  # of 12 steps for each member
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_images(), tmp_path / "run", settings=TWO)
    with pytest.raises(InputError, match="another configuration"):
        fit_tiny(tiny_images(), tmp_path / "run", settings={"finetune.members": 3})
    with monkeypatch.context() as patch:
        kill_after(
            patch, 24 - steps + 5, FineTuner
        )  # 5 since the last checkpoint at most; none of a finished member
        fit_tiny(tiny_images(), tmp_path / "run", settings=TWO)
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")


def test_members_are_one_or_more(tmp_path):
    with pytest.raises(InputError, match=r"`finetune.members` to be 1 or more, but got 0"):
        fit_tiny(tiny_images(), tmp_path / "run", settings={"finetune.members": 0})
