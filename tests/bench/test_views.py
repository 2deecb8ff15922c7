"""The self-tuned row is what the model answers by itself: where it asks about styles, so does the row."""

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward.bench.specs import AUTO, NONE, OURS, Spec
from sourceward.bench.training import Training, _promised, train
from sourceward.validation.leave_one_domain_out import Trial
from tests.tiny_runs import TINY, tiny_images

SETTINGS = {**TINY, "image_size": 16, "num_steps": "auto"}


@pytest.mark.parametrize("worth", [0.02, 0.0])
def test_self_tuned_is_the_model_itself(tmp_path, monkeypatch, worth):
    def tried(name, network, voices, label):
        right = np.zeros((2, 1000))
        right[1, : round(1000 * worth)] = 1
        return Trial(name, right)

    monkeypatch.setattr("sourceward.training.joint.try_views", tried)
    training = Training(SETTINGS, "cpu", backbone="tiny:conv", weights=None, freeze=True)
    checkpoint = train(tiny_images(), training, (), 0, tmp_path)
    model = sw.load(tmp_path / "model", "cpu")
    assert bool(model.views) == (worth > 0)
    part = checkpoint.part("a")
    images = torch.from_numpy(part.dataset.items)
    tuned = checkpoint.answer(Spec(OURS, (("num_steps", AUTO),)), part).probabilities
    np.testing.assert_allclose(tuned, model.adapt(images).probabilities, atol=2e-3)
    plain = checkpoint.answer(Spec(NONE), part).probabilities
    np.testing.assert_allclose(plain, model.adapt(images, num_steps=0).probabilities, atol=1e-5)
    np.testing.assert_array_equal(checkpoint.answer(Spec(OURS), part).probabilities, tuned)
    for spec in (Spec(OURS), Spec(OURS, (("num_steps", AUTO),))):
        assert checkpoint.passes(spec, part) == (4 if worth else 1)
    assert checkpoint.passes(Spec(OURS, (("num_steps", 5),)), part) == 1
    promised = checkpoint.info["expected_gain"]
    assert ("views" in promised) == (worth > 0)
    if worth:
        assert np.abs(tuned - plain).max() > 1e-3
        assert promised["gain"] == pytest.approx(model.info["expected_gain"]["gain"] + worth)


def test_what_is_promised_of_views_counts_without_a_walk_too():
    told = {"gain": 0.02, "low": 0.01, "high": 0.03, "adapts": True, "views": "turn"}
    walk = {"gain": 0.01, "low": 0.0, "high": 0.02, "adapts": False}
    promised = _promised({"expected_gain": None, "tta_gain": told})
    assert (promised["gain"], promised["views"]) == (0.02, told)
    assert _promised({"expected_gain": walk, "tta_gain": told})["gain"] == pytest.approx(0.03)
    assert _promised({"expected_gain": walk, "tta_gain": told | {"adapts": False}}) == walk
    assert _promised({"expected_gain": None}) is None
