"""The row `ebtsa (auto)` is the fitted model as users get it, test-time augmentation included."""

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward.bench.protocol.methods import AUTO, EBTSA, NONE, Method
from sourceward.bench.protocol.training import Training, _expected_gain, train
from sourceward.validation.leave_one_domain_out import Trial
from tests.tiny_runs import TINY, tiny_images

SETTINGS = {**TINY, "image_size": 16, "num_steps": "auto"}


@pytest.mark.parametrize("worth", [0.02, 0.0])
def test_auto_is_the_model_itself(tmp_path, monkeypatch, worth):
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
    tuned = checkpoint.predict(Method(EBTSA, (("num_steps", AUTO),)), part).probabilities
    np.testing.assert_allclose(tuned, model.adapt(images).probabilities, atol=2e-3)
    plain = checkpoint.predict(Method(NONE), part).probabilities
    np.testing.assert_allclose(plain, model.adapt(images, num_steps=0).probabilities, atol=1e-5)
    np.testing.assert_array_equal(checkpoint.predict(Method(EBTSA), part).probabilities, tuned)
    for method in (Method(EBTSA), Method(EBTSA, (("num_steps", AUTO),))):
        assert checkpoint.passes(method, part) == (4 if worth else 1)
    assert checkpoint.passes(Method(EBTSA, (("num_steps", 5),)), part) == 1
    expected = checkpoint.info["expected_gain"]
    assert ("tta" in expected) == (worth > 0)
    if worth:
        assert np.abs(tuned - plain).max() > 1e-3
        assert expected["gain"] == pytest.approx(model.info["expected_gain"]["gain"] + worth)


def test_what_is_expected_gain_of_views_counts_without_a_steps_too():
    told = {"gain": 0.02, "low": 0.01, "high": 0.03, "adapts": True, "views": "turn"}
    steps = {"gain": 0.01, "low": 0.0, "high": 0.02, "adapts": False}
    expected = _expected_gain({"expected_gain": None, "tta_gain": told})
    assert (expected["gain"], expected["tta"]) == (0.02, told)
    assert _expected_gain({"expected_gain": steps, "tta_gain": told})["gain"] == pytest.approx(0.03)
    assert _expected_gain({"expected_gain": steps, "tta_gain": told | {"adapts": False}}) == steps
    assert _expected_gain({"expected_gain": None}) is None
