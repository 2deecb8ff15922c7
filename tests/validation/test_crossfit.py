"""Leave-one-domain-out validation of a backbone that is trained: short fine-tunings without each source."""

import json

import pytest
import torch

from sourceward.adaptation.copies import Statistics
from sourceward.data.loading import load_sources
from sourceward.model import load
from sourceward.nn.backbones import create_backbone
from sourceward.training.finetune import FineTuner
from sourceward.training.trainer import Trainer
from sourceward.validation.crossfit import encode_copies, source_statistics
from tests.tiny_runs import fit_tiny, four_domains, kill_after, weights_of

OPTIONS = {"target": "d", "allow_missing": True, "progress": False, "settings": {"num_steps": "auto"}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "crossfit"
    fit_tiny(four_domains(), out, **OPTIONS)
    return out


def test_the_gain_is_estimated_on_every_source(whole):
    model = load(whole, "cpu")
    expected = model.info["expected_gain"]
    assert set(expected["per_source"]) == {"a", "b", "c"}
    assert (expected["num_steps"], expected["tta"]) == (model.settings.num_steps, model.tta)
    assert model.adapter.expected_gain_.to_dict() == expected
    assert expected["adapts"] == bool(model.tta or not model.settings.is_off)
    assert "leave-one-domain-out validation" in (whole / "README.md").read_text()
    assert not (whole / "crossfit").exists()


@pytest.mark.parametrize("steps", [5, 20, 33, 58, 80])
def test_killed_anywhere_it_goes_on_to_the_same_choice_and_estimate(steps, whole, tmp_path, monkeypatch):
    """Fine-tuning takes 12 steps, heads 12, then as many of both without each source."""
    with monkeypatch.context() as patch:
        kill_after(patch, steps, FineTuner, Trainer)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(four_domains(), tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run/config.json").exists()
    fit_tiny(four_domains(), tmp_path / "run", **OPTIONS)
    assert weights_of(tmp_path / "run") == weights_of(whole)
    ours, theirs = (json.loads((run / "config.json").read_text()) for run in (tmp_path / "run", whole))
    for key in ("expected_gain", "tta", "adapt", "adapter"):
        assert ours[key] == theirs[key]


def test_a_finished_fold_is_not_fine_tuned_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_after(patch, 58, FineTuner, Trainer)  # in the third fold
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(four_domains(), tmp_path / "run", **OPTIONS)
    assert (tmp_path / "run/crossfit/1/finetuned.safetensors").exists()
    kill_after(monkeypatch, 12, FineTuner)
    fit_tiny(four_domains(), tmp_path / "run", **OPTIONS)


@pytest.mark.parametrize("num_steps", ["auto", 2])
def test_without_cross_fits_nothing_is_estimated(num_steps, tmp_path, monkeypatch):
    settings = {"num_steps": num_steps, "crossfit": 0.0}
    kill_after(monkeypatch, 24, FineTuner, Trainer)  # of the model alone
    model = fit_tiny(four_domains(), tmp_path / "run", **{**OPTIONS, "settings": settings})
    assert model.info["expected_gain"] is model.adapter.expected_gain_ is None
    assert (model.tta, model.settings.is_off) == ("", num_steps == "auto")
    assert "Not estimated" in (tmp_path / "run/README.md").read_text()


def test_learned_weights_without_cross_fits_are_those_of_the_energies(tmp_path):
    settings = {"num_steps": 2, "crossfit": 0.0, "aggregation": "learned"}
    model = fit_tiny(four_domains(), tmp_path / "run", **{**OPTIONS, "settings": settings})
    assert model.settings.source_weights is not None
    by_energy = model.adapt(four_domains().items[:5])
    model.adapter.set_params(aggregation="energy")
    assert (by_energy.probabilities == model.adapt(four_domains().items[:5]).probabilities).all()


def test_transforms_that_are_named_are_used_and_steps_are_chosen(tmp_path):
    settings = {"num_steps": "auto", "tta": "hflip+adain"}
    model = fit_tiny(four_domains(), tmp_path / "run", **{**OPTIONS, "settings": settings})
    assert load(tmp_path / "run", "cpu").tta == model.tta == "hflip+adain"
    assert model.info["expected_gain"]["tta"] == ""


def test_a_run_that_was_killed_while_tidying_is_tidied(whole):
    before = sorted(path.name for path in whole.iterdir())
    (whole / "crossfit" / "0").mkdir(parents=True)
    for name in ("finetuned.safetensors", "heads.safetensors"):
        (whole / name).write_bytes(b"left")
    fit_tiny(four_domains(), whole, **OPTIONS)
    assert sorted(path.name for path in whole.iterdir()) == before


def test_copies_are_encoded_beside_the_samples():
    data = four_domains().without("d")
    backbone = create_backbone("tiny:conv", weights=None, image_size=16).eval().requires_grad_(False)
    loaded = load_sources(data, backbone, torch.device("cpu"), 0.1, show=False)
    statistics = Statistics(3, None, source_statistics(backbone, loaded.samples, loaded.train))
    found = encode_copies("hflip+adain", statistics, backbone, loaded.samples, slice(0, 7))
    assert {name: [part.weight for part in parts] for name, parts in found.items()} == {
        "": [1.0],
        "hflip": [1.0],
        "adain": [pytest.approx(1 / 3)] * 3,
    }
    images = torch.cat(list(loaded.samples.stored(slice(0, 7))))
    flipped = backbone(loaded.samples.normalize(images.flip(-1)))
    torch.testing.assert_close(found["hflip"][0].feature, flipped)
    assert not torch.equal(found["adain"][0].feature, found["adain"][1].feature)
