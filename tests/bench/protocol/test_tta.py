"""The row `ebtsa (auto)` is the fitted model as users get it, test-time augmentation included."""

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward.bench.protocol.methods import AUTO, EBTSA, NONE, Method
from sourceward.bench.protocol.training import Training, train
from tests.tiny_runs import TINY, tiny_images


@pytest.mark.parametrize(("tta", "copies"), [("fourier", 3), ("none", 0)])
def test_auto_is_the_model_itself(tmp_path, tta, copies):
    settings = {**TINY, "image_size": 16, "tta": tta}
    training = Training(settings, "cpu", backbone="tiny:conv", weights=None, freeze=True)
    checkpoint = train(tiny_images(), training, (), 0, tmp_path / "run")
    model = sw.load(tmp_path / "run", "cpu")
    part = checkpoint.part("a")
    images = torch.from_numpy(part.dataset.items)
    adapted = checkpoint.predict(Method(EBTSA, (("num_steps", AUTO),)), part).probabilities
    np.testing.assert_allclose(adapted, model.adapt(images).probabilities, atol=2e-3)
    unadapted = checkpoint.predict(Method(NONE), part).probabilities
    np.testing.assert_allclose(unadapted, model.adapt(images, num_steps=0).probabilities, atol=1e-5)
    np.testing.assert_array_equal(checkpoint.predict(Method(EBTSA), part).probabilities, adapted)
    assert checkpoint.passes(Method(EBTSA), part) == 1 + copies
    assert checkpoint.passes(Method(EBTSA, (("num_steps", 5),)), part) == 1


def test_other_settings_are_those_of_the_model_with_changes(tmp_path):
    training = Training({**TINY, "image_size": 16}, "cpu", backbone="tiny:conv", weights=None, freeze=True)
    checkpoint = train(tiny_images(), training, ("c",), 0, tmp_path / "run")
    settings = checkpoint.settings(7, step_size=3.0, aggregation="closest")
    assert (settings.num_steps, settings.step.step_size, settings.aggregation) == (7, 3.0, "closest")
    assert checkpoint.settings(0).is_off
    assert checkpoint.settings() == checkpoint.model.settings
