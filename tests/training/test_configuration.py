"""FitSettings: defaults by recipe, layers of values by name, and refusals."""

import inspect
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

import sourceward
from sourceward import EnergyAdapter
from sourceward._util.errors import InputError
from sourceward.settings import TrainSettings
from sourceward.training.configuration import (
    JOINT,
    FitSettings,
    is_pretrained,
    parse_assignments,
    read_config,
    settings_for,
)
from sourceward.training.finetune import FineTuneSettings
from tests.tiny_runs import tiny_images


def test_defaults_with_a_frozen_backbone_are_the_estimators():
    defaults = {name: p.default for name, p in inspect.signature(EnergyAdapter).parameters.items()}
    settings = settings_for(False)
    for name in settings.estimator().keys() - {"train"}:
        assert getattr(settings, name) == defaults[name], name
    assert settings.train == TrainSettings.of(defaults["train"])


def test_settings_have_the_defaults_of_their_recipe():
    assert FitSettings(recipe="joint") == settings_for(True, {"recipe": "joint"})
    assert FitSettings() == settings_for(True)
    assert all(getattr(FitSettings(recipe="joint"), name) == value for name, value in JOINT.items())
    given = FitSettings(recipe="joint", kl_weight=FitSettings().kl_weight)
    assert (given.kl_weight, given.whiten) == (FitSettings().kl_weight, False)


def test_later_layers_override_earlier_ones():
    settings = settings_for(True, {"max_iter": 5, "kl_weight": 0.5}, {"max_iter": "7"})
    assert (settings.max_iter, settings.kl_weight) == (7, 0.5)
    assert settings_for(True, {"num_steps": "7"}).num_steps == 7


@pytest.mark.parametrize(
    ("trains_backbone", "given", "name"),
    [
        (False, {"finetune.max_iter": 7}, "finetune.max_iter"),
        (False, {"augmentation": {"hue": 0.3}}, "augmentation.hue"),
        (False, {"backbone_learning_rate": 0.1}, "backbone_learning_rate"),
        (True, {"recipe": "joint", "finetune.max_iter": 7}, "finetune.max_iter"),
        (True, {"recipe": "joint", "finetune.select": "last"}, "finetune.select"),
        (True, {"backbone_learning_rate": 0.1}, "backbone_learning_rate"),
    ],
)
def test_a_setting_without_effect_is_refused(trains_backbone, given, name):
    with pytest.raises(InputError, match=f"`{name}` has no effect"):
        settings_for(trains_backbone, given)


def test_a_settings_object_is_checked_as_layers_are(tmp_path):
    for settings, options, message in (
        (FitSettings(backbone_learning_rate=1e-3), {}, "set `finetune.backbone_learning_rate`"),
        (FitSettings(heads_device="cpu"), {"freeze": True}, "`heads_device` belongs"),
    ):
        with pytest.raises(InputError, match=message):
            sourceward.fit(tiny_images(), out=tmp_path / "run", target="c", settings=settings, **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_iter", "Expected --set key=value"),
        ("max_iter=1.5", "to be int, but got 1.5"),
        ("freeze_batchnorm=1", "to be bool, but got 1"),
        ("augmentation.hues=0", "Unknown setting 'hues'"),
        ("head=protoype", "Did you mean 'prototype'"),
        ("evaluate_every=0", "`evaluate_every` to be 1 or more"),
        ("train.chains=0", "`chains` to be 1 or more"),
    ],
)
def test_wrong_assignments_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        FitSettings().changed(parse_assignments([text]))


def test_assignments_of_numbers_null_and_nested_values():
    values = parse_assignments(
        ["kl_weight=1", "train.chains=none", "augmentation.scale=[0.5, 1]", "sampler=nesterov"]
    )
    settings = FitSettings().changed({**values, "finetune": {"max_iter": 9}})
    assert (settings.kl_weight, settings.train.chains, settings.sampler) == (1.0, None, "nesterov")
    assert settings.augmentation.scale == (0.5, 1)
    assert settings.finetune.max_iter == 9
    assert FitSettings().changed(settings.to_dict()) == settings


def test_config_files(tmp_path):
    file = tmp_path / "settings.json"
    file.write_text('{"max_iter": 3}')
    assert read_config(file) == {"max_iter": 3}
    for text in ("[1]", "{"):
        file.write_text(text)
        with pytest.raises(InputError, match="Expected"):
            read_config(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "none.json")


def test_a_pretrained_backbone_is_averaged_over_all_iterates():
    pretrained = settings_for(True, pretrained=True)
    assert (pretrained.finetune.average, pretrained.finetune.schedule) == (1, "constant")
    assert (pretrained.augmentation.fourier, pretrained.augmentation.sketch) == (0.5, 0.3)
    own = settings_for(True, {"finetune": {"average": 0.9}}, pretrained=True)
    assert own.finetune == replace(FineTuneSettings(), average=0.9)
    assert own.augmentation == pretrained.augmentation
    assert settings_for(True, {"finetune.max_iter": 7}, pretrained=True).finetune.average == 1
    assert settings_for(False, pretrained=True) == settings_for(False)
    assert settings_for(True, {"recipe": "joint"}, pretrained=True) == FitSettings(recipe="joint")


def test_which_backbones_are_pretrained():
    assert is_pretrained("image", None, "default")
    assert is_pretrained("image", Path("folder"), "default")
    assert not is_pretrained("text", "hf:distilbert-base-uncased", "default")
    assert not is_pretrained("image", "tiny:resnet", "default")
    assert not is_pretrained("image", nn.Linear(2, 2), "default")


def test_none_is_a_word_where_a_setting_is_one():
    changed = FitSettings().changed(parse_assignments(["tta=none", "image_size=none"]))
    assert (changed.tta, changed.image_size) == ("none", None)
