"""One pipeline: features, a frozen backbone and a trained one end in the same estimator."""

import numpy as np
import pytest
import torch

from sourceward import EnergyAdapter
from sourceward.adaptation.copies import CopyEncoder
from sourceward.data.features import extract_features
from sourceward.fitting.checks import make_backbone
from sourceward.model import captured, load
from sourceward.nn.backbones import ImagePreprocessing, create_backbone
from sourceward.training.configuration import FitSettings
from sourceward.validation import crossfit
from tests.tiny_runs import TINY, fit_tiny, four_domains, four_features

ESTIMATOR = {name: TINY[name] for name in ("max_iter", "batch_size")} | {
    "train": {"num_steps": 2, "chains": 4}
}
OPTIONS = {"target": "d", "allow_missing": True, "progress": False}


def estimator_on(features, **settings):
    """An `EnergyAdapter` fitted to the training rows of the sources."""
    sources = features.without("d")
    rows = sources.train_val_indices(0.1)[0]
    names = np.array(sources.domain_names)[sources.domains[rows]]
    labels = np.array(sources.classes)[sources.labels[rows]]
    return EnergyAdapter(**{**ESTIMATOR, **settings}).fit(sources.items[rows], labels, sample_domain=names)


def assert_same(model, estimator, inputs):
    assert model.classes == tuple(estimator.classes_)
    assert model.sources == tuple(estimator.sources_)
    assert model.settings == estimator.settings_
    assert model.adapter.expected_gain_ == estimator.expected_gain_
    np.testing.assert_array_equal(model.predict_proba(inputs), estimator.predict_proba(inputs))
    ours, theirs = model.network.state_dict(), estimator.network_.state_dict()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


@pytest.mark.parametrize(
    "settings",
    [
        {"num_steps": "auto"},
        {"num_steps": 3},
        {"num_steps": "auto", "aggregation": "learned", "head": "prototype", "whiten": False},
        {"num_steps": 2, "train": {"num_steps": 2, "chains": 4, "components": 3}},
    ],
    ids=["auto", "3 steps", "learned", "components"],
)
def test_features_end_in_the_estimator_on_the_same_rows(settings, tmp_path):
    data = four_features()
    model = fit_tiny(data, tmp_path / "run", settings=settings, **OPTIONS)
    target = data.of_domains("d").items
    assert_same(model, estimator_on(data, **settings), target)
    assert_same(load(tmp_path / "run", "cpu"), estimator_on(data, **settings), target)
    estimated = settings["num_steps"] == "auto"
    assert (model.info["expected_gain"] is not None) == estimated


def test_a_frozen_backbone_ends_in_the_estimator_on_its_features(tmp_path):
    settings = {"num_steps": "auto", "tta": "none", "fourier_copies": False}
    model = fit_tiny(four_domains(), tmp_path / "run", freeze=True, settings=settings, **OPTIONS)
    features = extract_features(four_domains(), model.backbone, torch.device("cpu"), False)
    assert_same(model, estimator_on(features, num_steps="auto"), features.of_domains("d").items)
    assert model.tta == ""


def test_a_frozen_backbone_is_trained_on_amplitude_mixed_copies_too(tmp_path):
    models = {
        copies: fit_tiny(
            four_domains(),
            tmp_path / str(copies),
            freeze=True,
            settings={"fourier_copies": copies},
            **OPTIONS,
        )
        for copies in (True, False)
    }
    plain, mixed = models[False].network, models[True].network
    assert not torch.equal(plain.energy.weights().feature, mixed.energy.weights().feature)
    for name, value in plain.backbone.state_dict().items():
        assert torch.equal(value, mixed.backbone.state_dict()[name])
    assert models[True].info["expected_gain"] is not None, "`fourier` was tried on held-out sources"
    assert models[True].tta in ("", "fourier")
    assert models[True].tta == models[True].info["expected_gain"]["tta"]


@pytest.mark.parametrize("tta", ["none", "fourier", "hflip+grayscale"])
def test_transforms_that_are_named_are_not_chosen(tta, tmp_path):
    model = fit_tiny(four_domains(), tmp_path / "run", freeze=True, settings={"tta": tta}, **OPTIONS)
    assert load(tmp_path / "run", "cpu").tta == model.tta == ("" if tta == "none" else tta)
    assert model.info["expected_gain"] is None, "nothing was chosen: steps are given, too"


def test_a_module_of_ones_own_is_a_backbone(tmp_path):
    start = create_backbone("tiny:conv", weights=None, image_size=16)
    before = {name: value.clone() for name, value in start.state_dict().items()}
    fit_tiny(four_domains(), tmp_path / "run", backbone=start.network, freeze=True, **OPTIONS)
    for name, value in start.state_dict().items():
        assert torch.equal(value, before[name])


def test_validation_and_predictions_have_copies_of_one_size(tmp_path, monkeypatch):
    sizes = []

    class Noted(CopyEncoder):
        def __init__(self, *given):
            super().__init__(*given)
            sizes.append(self.size)

    monkeypatch.setattr(crossfit, "CopyEncoder", Noted)
    settings = {"image_size": 64, "copy_scale": 0.5, "augmentation.fourier": 0}
    fit_tiny(four_domains(), tmp_path / "run", settings=settings, **OPTIONS)
    assert sizes == [(32, 32)] * 3, "of each held-out source"
    monkeypatch.setattr(captured, "CopyEncoder", Noted)
    model = load(tmp_path / "run", "cpu").with_tta("hflip")
    model.predict(four_domains().of_domains("d").items)
    assert sizes[3:] == [(32, 32)]


@pytest.mark.parametrize(("spec", "scale"), [("timm:vit_tiny_patch16_224", 1.0), ("tiny:conv", 0.5)])
def test_a_backbone_that_reads_one_size_gets_large_copies(spec, scale):
    size = None if spec.startswith("timm") else 64
    settings = FitSettings(copy_scale=0.5, image_size=size)
    backbone = make_backbone(four_domains(), spec, None, settings, True, 0)
    assert backbone.preprocessing.copy_scale == scale


def test_a_backbone_keeps_the_size_of_its_copies_unless_a_setting_says_otherwise():
    for own, setting, expected in ((0.5, None, 0.5), (0.5, 1.0, 1.0), (1.0, 0.5, 0.5)):
        preprocessing = ImagePreprocessing((64, 64), copy_scale=own)
        backbone = create_backbone("tiny:conv", weights=None, preprocessing=preprocessing)
        made = make_backbone(four_domains(), backbone, None, FitSettings(copy_scale=setting), True, 0)
        assert made.preprocessing.copy_scale == expected
