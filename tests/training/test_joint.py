"""The recipe `joint`: Algorithm 1 end to end, its selection, and what it writes."""

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward._util.errors import TrainingError
from sourceward._util.storage import tensor_hash
from sourceward.data.dataset import split_sources
from sourceward.settings import AdaptSettings
from sourceward.training import joint
from tests.tiny_runs import fit_tiny, tiny_images


def test_nothing_is_chosen_and_nothing_is_estimated(joint_run):
    model = sw.load(joint_run, "cpu")
    assert (model.settings.num_steps, model.tta, model.info["expected_gain"]) == (2, "", None)
    assert model.settings.aggregation == AdaptSettings.aggregation
    assert model.info["cost"].keys() == {"joint"}
    assert "Not estimated" in (joint_run / "README.md").read_text()


def test_scores_are_those_of_its_predictions_on_source_validation(joint_run):
    model = sw.load(joint_run, "cpu")
    arranged, _, val = split_sources(tiny_images().without("c"))
    for name, rows in zip(model.sources, val, strict=True):
        scores = model.info["metrics"]["per_source"][name]
        for key, steps in (("unadapted", 0), ("adapted", None)):
            found = model.adapt(torch.from_numpy(arranged.items[rows]), num_steps=steps)
            right = found.probabilities.argmax(1) == arranged.labels[rows]
            assert scores[key] == pytest.approx(right.mean())
        assert scores["samples"] == rows.stop - rows.start


@pytest.mark.parametrize("names", ["hflip", "fourier", "adain"])
def test_transforms_can_be_named_afterwards(joint_run, names):
    model, images = sw.load(joint_run, "cpu"), torch.from_numpy(tiny_images().items[:4])
    plain, copies = model.predict_proba(images), model.with_tta(names).predict_proba(images)
    assert np.abs(copies - plain).max() > 0


def test_the_best_weights_are_used_and_the_last_are_beside_them(tmp_path, monkeypatch):
    scores = iter([0.5, 0.9, 0.9, 0.1])  # of equals the later

    def validate(*_):
        value = next(scores)
        return {"adapted": value, "unadapted": value, "per_source": {}}

    monkeypatch.setattr(joint, "validation_scores", validate)
    settings = {"recipe": "joint", "evaluate_every": 3}
    model = fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    assert model.info["metrics"]["iteration"] == 9
    assert model.info["metrics"]["last_iteration"] == 12
    last = sw.load(tmp_path / "run", "cpu", weights="last.safetensors")
    assert tensor_hash(last.network.state_dict()) != tensor_hash(model.network.state_dict())
    images = torch.from_numpy(tiny_images().items[:4])
    assert np.isfinite(last.predict_proba(images)).all()


def test_the_distilled_sampler_is_fitted_to_the_finished_network(tmp_path):
    settings = {"recipe": "joint", "sampler": "distilled", "train.distilled_steps": 3}
    model = fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    images = torch.from_numpy(tiny_images().items[:4])
    again = sw.load(tmp_path / "run", "cpu")
    assert again.network.distilled is not None
    np.testing.assert_array_equal(again.predict_proba(images), model.predict_proba(images))


def test_a_kl_weight_that_presses_the_classes_out_of_z_stops_the_training(tmp_path):
    """With the released code's 0.1 in our units the prototype head of a ResNet-50 learned nothing for 2,000
    iterations: here the same weight for this width."""
    settings = {"recipe": "joint", "head": "prototype", "max_iter": 400, "kl_weight": 100.0, "batch_size": 8}
    settings |= {"train.feature_noise": 0.0, "evaluate_every": 400}
    with pytest.raises(
        TrainingError, match=r"learns almost nothing at iteration 300.*Lower `kl_weight`, now"
    ):
        fit_tiny(tiny_images(), tmp_path / "run", settings=settings)


def test_a_training_at_chance_stops_and_says_so(tmp_path):
    settings = {
        "recipe": "joint",
        "head": "prototype",
        "max_iter": 400,
        "learning_rate": 1e-9,
        "batch_size": 8,
    }
    settings |= {"backbone_learning_rate": 0.0, "kl_weight": "paper", "evaluate_every": 400}
    with pytest.raises(TrainingError, match=r"has learned nothing at iteration 300.*Raise `learning_rate`"):
        fit_tiny(tiny_images(), tmp_path / "run", settings=settings)


def test_checkpoints_of_every_validation_are_kept_and_load(tmp_path):
    settings = {"recipe": "joint", "keep_checkpoints": True, "evaluate_every": 6}
    model = fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    kept = sorted(file.name for file in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["000006.safetensors", "000012.safetensors"]
    images = torch.from_numpy(tiny_images().items[:4])
    first = sw.load(tmp_path / "run", "cpu", weights=f"checkpoints/{kept[0]}")
    assert not np.array_equal(first.predict_proba(images), model.predict_proba(images))
