"""A fit with another method writes a model folder that its adapter can use."""

import numpy as np
import torch

from sourceward import create_adapter, load
from sourceward.nn.backbones.backbone import ROTATION
from tests.tiny_runs import fit_tiny, tiny_images


def test_the_rotation_head_is_in_the_model_folder(tmp_path):
    data = tiny_images()
    model = fit_tiny(data, tmp_path / "run", settings={"finetune.method": "rotation"})
    again = load(tmp_path / "run", "cpu")
    head = again.backbone.auxiliary[ROTATION]
    assert torch.equal(head.weight, model.backbone.auxiliary[ROTATION].weight)
    assert head.weight.abs().sum() > 0  # trained
    images = again.backbone.preprocessing.normalize(torch.from_numpy(data.items[:3]))
    none = create_adapter("none")(again.network, again.network.features(images))
    adapted = create_adapter("ttt", num_copies=4, learning_rate=0.1)(again.network, images)
    assert np.abs(adapted.probabilities - none.probabilities).max() > 0
    assert set(adapted.status) == {"adapted"}
