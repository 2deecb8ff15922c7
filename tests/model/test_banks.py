"""Feature files of a model's backbone."""

import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.data import open_dataset
from sourceward.data.dataset import split_sources
from sourceward.model import load
from sourceward.model.banks import save_features
from tests.tiny_runs import fit_tiny, tiny_features, tiny_images


def test_a_feature_file_is_a_dataset_of_what_the_heads_were_fitted_to(tiny_run, tmp_path):
    model, data = load(tiny_run, "cpu"), tiny_images()
    save_features(model, data, tmp_path / "bank.npz")
    bank = open_dataset(tmp_path / "bank.npz")
    assert bank.targets == ("c",)
    assert (bank.classes, bank.domain_names) == (data.classes, data.domain_names)
    np.testing.assert_array_equal(bank.labels, data.labels)
    assert np.load(tmp_path / "bank.npz")["features"].dtype == np.float16
    raw = model.network.raw(model.features(data.items)).numpy()
    np.testing.assert_allclose(bank.items, raw, rtol=2e-3, atol=1e-3)
    held = {bank.ids[row] for row in bank.without("c").train_val_indices()[1]}
    _, train, val = split_sources(data.without("c"))
    assert len(held) == val[-1].stop - train[-1].stop
    fit_tiny(bank, tmp_path / "again")


def test_projected_features(tmp_path):
    model = fit_tiny(tiny_images(), tmp_path / "run", settings={"train.components": 8})
    save_features(model, tiny_images(), tmp_path / "bank.npz")
    assert open_dataset(tmp_path / "bank.npz").items.shape[1] == 8


def test_another_ending_is_refused(tiny_run, tmp_path):
    with pytest.raises(InputError, match=r"ends in \.npz"):
        save_features(load(tiny_run, "cpu"), tiny_features(), tmp_path / "bank.csv")
