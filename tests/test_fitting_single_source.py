"""A single source takes its negatives from shifts of its own samples."""

import numpy as np
import pytest
import torch

from sourceward._util.storage import tensor_hash
from sourceward.data.dataset import split_sources
from sourceward.data.features import corrupted_features
from sourceward.data.feeds import ResidentFeed
from sourceward.data.loading import Resident
from tests.tiny_runs import (
    fit_tiny,
    tiny_features,
    tiny_images,
    tiny_texts,
)

LONE = {"image_size": 32, "train.components": 16}


@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=["fine-tuned", "frozen"])
def test_negatives_of_images_are_corrupted_copies(options, tmp_path, monkeypatch):
    seen = []
    draw = ResidentFeed.__call__
    monkeypatch.setattr(ResidentFeed, "__call__", lambda self, g: seen.append(self.shifted) or draw(self, g))
    model = fit_tiny(tiny_images(), tmp_path / "run", target=("b", "c"), settings=LONE, **options)
    assert model.sources == ("a",)
    feature, label = seen[-1]
    count = 4 * split_sources(tiny_images().of_domains("a"))[1][-1].stop
    assert feature.shape == (count, 14)  # fewer rows than columns: as many components as the rows have
    assert label.shape == (count,)
    noisy = fit_tiny(
        tiny_images(), tmp_path / "noisy", target=("b", "c"), settings={**LONE, "shifts": "noise"}, **options
    )
    assert seen[-1] is None
    assert tensor_hash(noisy.network.energy.state_dict()) != tensor_hash(model.network.energy.state_dict())


@pytest.mark.parametrize("data", [tiny_texts, tiny_features], ids=["texts", "features"])
def test_negatives_of_other_data_are_noise(data, tmp_path):
    model = fit_tiny(data(), tmp_path / "run", target=("b", "c"))
    assert model.sources == ("a",)
    assert np.isfinite(model.predict_proba(data().items[:3])).all()


def test_corrupted_copies_keep_their_order(tmp_path):
    """With a backbone that only averages pixels, a copy lies nearer to its own image than to another."""
    flat = np.repeat(np.arange(20, 240, 20, dtype=np.uint8), 3 * 32 * 32).reshape(-1, 3, 32, 32)
    samples = Resident(torch.from_numpy(flat), lambda rows: rows.float())
    feature = corrupted_features(lambda x: x.mean((2, 3)), samples, slice(0, 11))
    assert feature.shape == (44, 3)
    noise, blur = feature[:11].mean(1), feature[11:22].mean(1)
    np.testing.assert_allclose(blur, flat[:, 0, 0, 0], atol=1)
    assert (noise.diff() > 0).all()
