from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

import sourceward
from sourceward._util.errors import InputError
from sourceward.bench.protocol.training import Training
from sourceward.data import DATASETS
from sourceward.nn.backbones.factory import FAMILIES
from sourceward.training.configuration import (
    JOINT,
    FitSettings,
    has_learned,
    parse_assignments,
    read_config,
    settings_for,
)
from sourceward.training.finetune import FineTuneSettings
from sourceward.training.presets import CODE, OF_BACKBONE, OURS, PRESETS, TABLE, TEXT
from tests.tiny_runs import OFTEN, TINY, fit_tiny, tiny_features, tiny_images


@pytest.mark.parametrize("name", list(PRESETS))
def test_names_of_presets_exist_and_values_are_accepted(name):
    preset = PRESETS[name]
    assert preset.dataset in set(DATASETS)
    family, _, model = preset.backbone.partition(":")
    assert FAMILIES[family].is_name(model)
    settings = settings_for(True, preset.settings)
    assert settings.max_iter == 10_000
    assert settings.batch_size == 128
    assert settings.step_size == 50


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_value_names_its_source(name):
    preset = PRESETS[name]
    said = [preset.backbone_source, *(value.source for value in preset.values.values())]
    assert {source.partition(":")[0] for source in said} <= {TABLE, TEXT, CODE, OURS}
    assert all(reason for who, _, reason in (source.partition(": ") for source in said) if who == OURS)


def test_every_dataset_of_the_paper_has_a_preset():
    ours = {"vlcs", "terra_incognita", "corrupted_mnist", "corrupted_fashion_mnist"}
    assert {PRESETS[name].dataset for name in PRESETS} == set(DATASETS) - ours


@pytest.mark.parametrize("shifts", ["noise", "corruptions"])
def test_one_clean_source_is_fitted_by_the_presets_of_corruptions(tmp_path, shifts):
    source = tiny_images().without(("b", "c"))
    preset = "cifar10-c-resnet18" + "-corruptions" * (shifts == "corruptions")
    small = {"image_size": 32, "batch_size": 8, "num_draws": 2, "num_steps": 2, "train_steps": 2}
    small |= {} if shifts == "corruptions" else {"recipe": "joint"}
    model = fit_tiny(source, tmp_path / "run", target=(), preset=preset, settings=small)
    assert model.info["training"]["settings"]["shifts"] == shifts
    assert model.sources == ("a",)


@pytest.mark.parametrize(
    ("name", "rate", "draws"),
    [
        ("pacs-resnet18", 5e-5, 10),
        ("pacs-resnet50", 1e-5, 10),
        ("office-home-resnet18", 1e-5, 5),
        ("office-home-resnet50", 1e-5, 5),
        ("rotated-mnist-resnet18", 5e-5, 10),
        ("rotated-fashion-mnist-resnet18", 5e-5, 10),
        ("pheme-distilbert", 3e-5, 10),
    ],
)
def test_values_of_the_papers_table(name, rate, draws):
    settings = settings_for(True, PRESETS[name].settings)
    assert settings.backbone_rate == rate
    assert settings.num_draws == draws


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_without_a_backbone_to_train_keeps_what_is_of_heads_and_energies(name):
    preset = PRESETS[name]
    layer, frozen = preset.layer(False), settings_for(False, preset.layer(False))
    assert {key.partition(".")[0] for key in preset.settings.keys() - layer.keys()} <= set(OF_BACKBONE)
    assert all(getattr(frozen, key) == value for key, value in layer.items())
    for key in OF_BACKBONE:
        assert getattr(frozen, key) == getattr(FitSettings(), key), key
    assert preset.layer(True) == preset.settings


def test_bench_makes_of_a_frozen_preset_what_fit_does(tmp_path):
    model = fit_tiny(tiny_images(), tmp_path / "run", freeze=True, preset="pacs-resnet18")
    settings = model.info["training"]["settings"]
    assert model.info["training"]["backbone"] == "tiny:conv"
    assert (settings["head"], settings["learning_rate"], settings["num_draws"]) == ("prototype", 1e-4, 10)
    assert settings["max_iter"] == TINY["max_iter"]  # what is given comes after the preset
    told = Training({**TINY, **OFTEN, "image_size": 16}, freeze=True, preset="pacs-resnet18")
    assert told.fit_settings("image").to_dict() == settings


def test_features_need_nothing_of_a_presets_backbone(tmp_path):
    model = fit_tiny(tiny_features(), tmp_path / "run", preset="pacs-resnet18")
    assert model.backbone is None
    assert model.info["training"]["settings"]["head"] == "prototype"
    with pytest.raises(InputError, match="Features need no backbone, but 'timm:resnet50' was given"):
        fit_tiny(tiny_features(), tmp_path / "other", preset="pacs-resnet18", backbone="timm:resnet50")


def test_frozen_defaults_are_the_estimators():
    import inspect

    from sourceward import EnergyAdapter

    defaults = {name: p.default for name, p in inspect.signature(EnergyAdapter).parameters.items()}
    ours = vars(settings_for(False))
    assert {name: defaults[name] for name in ours if name in defaults} == {
        name: value for name, value in ours.items() if name in defaults
    }


def test_whole_settings_have_the_defaults_of_their_recipe():
    assert FitSettings(recipe="joint") == settings_for(True, {"recipe": "joint"})
    assert FitSettings() == settings_for(True)
    assert all(getattr(FitSettings(recipe="joint"), name) == value for name, value in JOINT.items())
    given = FitSettings(recipe="joint", kl=FitSettings().kl)  # what is given stays, whatever it is
    assert (given.kl, given.whiten) == (FitSettings().kl, False)


def test_whole_settings_are_looked_at_as_layers_are(tmp_path):
    for settings, options, message in (
        (FitSettings(backbone_rate=1e-3), {}, "set `finetune.backbone_rate`"),
        (FitSettings(heads_device="cpu"), {"freeze": True}, "`heads_device` belongs"),
    ):
        with pytest.raises(InputError, match=message):
            sourceward.fit(tiny_images(), out=tmp_path / "run", target="c", settings=settings, **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("trains", "given", "message"),
    [
        (False, {"finetune.max_iter": 7}, "`finetune.max_iter` has a part where a backbone is trained"),
        (False, {"augmentation": {"hue": 0.3}}, "`augmentation.hue` has a part"),
        (False, {"backbone_rate": 0.1}, "`backbone_rate` has a part"),
        (False, {"recipe": "joint"}, "`recipe` has a part"),
        (True, {"recipe": "joint", "finetune.max_iter": 7}, "'joint': set `max_iter`, or choose"),
        (True, {"recipe": "joint", "finetune.select": "last"}, "'joint': choose `recipe=two-stage`"),
    ],
)
def test_a_setting_that_nothing_looks_at_is_refused(trains, given, message):
    with pytest.raises(InputError, match=message):
        settings_for(trains, given)


def test_later_layers_win():
    settings = settings_for(True, {"max_iter": 5, "kl": 0.5}, {"max_iter": "7"})
    assert (settings.max_iter, settings.kl) == (7, 0.5)
    assert settings_for(True, {"num_steps": "7"}).num_steps == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_iter", "Expected --set key=value"),
        ("max_iter=1.5", "to be int, but got 1.5"),
        ("freeze_batchnorm=1", "to be bool, but got 1"),
        ("augmentation.hues=0", "Unknown setting 'hues'"),
        ("head=protoype", "Did you mean 'prototype'"),
        ("evaluate_every=0", "`evaluate_every` to be 1 or more"),
    ],
)
def test_wrong_assignments(text, message):
    with pytest.raises(InputError, match=message):
        FitSettings().changed(parse_assignments([text]))


def test_numbers_null_and_nested_values():
    values = parse_assignments(
        ["augmentation.fourier=0.5", "augmentation.grayscale=0", "finetune.max_iter=9"]
    )
    settings = FitSettings().changed(values)
    assert (settings.augmentation.fourier, settings.augmentation.grayscale) == (0.5, 0.0)
    assert settings.finetune.max_iter == 9
    values = parse_assignments(["kl=1", "chains=none", "augmentation.scale=[0.5, 1]", "sampler=nesterov"])
    settings = FitSettings().changed(values)
    assert (settings.kl, settings.chains, settings.sampler) == (1.0, None, "nesterov")
    assert settings.augmentation.scale == (0.5, 1)
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


def test_a_backbone_that_has_learned_is_averaged_over_all_iterates():
    learned = settings_for(True, learned=True)
    assert learned.finetune.average == 1
    assert learned.finetune.schedule == "constant"
    assert (learned.augmentation.fourier, learned.augmentation.sketch) == (0.5, 0.3)
    own = settings_for(True, {"finetune": {"average": 0.9}}, learned=True)
    assert own.finetune == replace(FineTuneSettings(), average=0.9)
    assert own.augmentation == learned.augmentation
    assert settings_for(True, {"finetune.max_iter": 7}, learned=True).finetune.average == 1
    assert settings_for(False, learned=True) == settings_for(False)
    assert settings_for(True, {"recipe": "joint"}, learned=True) == FitSettings(recipe="joint")


def test_who_has_learned():
    assert has_learned("image", None, "default")
    assert has_learned("image", Path("folder"), "default")
    assert not has_learned("text", "hf:distilbert-base-uncased", "default")
    assert not has_learned("image", "tiny:resnet", "default")
    assert not has_learned("image", nn.Linear(2, 2), "default")
