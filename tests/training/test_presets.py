"""Presets: valid settings with their sources, and their use by `fit`."""

import pytest

from sourceward._util.errors import InputError, TrainingError
from sourceward.data import DATASETS
from sourceward.nn.backbones.factory import FAMILIES
from sourceward.training import trainer
from sourceward.training.configuration import FitSettings, settings_for
from sourceward.training.presets import CODE, OF_BACKBONE, OURS, PRESETS, TABLE, TEXT
from tests.tiny_runs import TINY, fit_tiny, tiny_features, tiny_images, tiny_texts

every = pytest.mark.parametrize("name", list(PRESETS))


@every
def test_names_exist_and_values_are_accepted(name):
    preset = PRESETS[name]
    assert preset.dataset in set(DATASETS)
    family, _, model = preset.backbone.partition(":")
    assert FAMILIES[family].is_name(model)
    settings = settings_for(True, preset.settings)
    assert (settings.max_iter, settings.batch_size) == (10_000, 128)
    assert settings.step_size == settings.train.step_size
    assert settings.num_steps == settings.train.num_steps == 20
    assert (settings.aggregation, settings.train.average, settings.kl_weight) == ("mean", 0.0, "paper")


@every
def test_every_value_names_its_source(name):
    preset = PRESETS[name]
    sources = [preset.backbone_source, *(value.source for value in preset.values.values())]
    assert {source.partition(":")[0] for source in sources} <= {TABLE, TEXT, CODE, OURS}
    assert all(reason for who, _, reason in (source.partition(": ") for source in sources) if who == OURS)


def test_every_dataset_of_the_paper_has_a_preset():
    not_in_the_paper = {"vlcs", "terra_incognita", "corrupted_mnist", "corrupted_fashion_mnist"}
    assert {PRESETS[name].dataset for name in PRESETS} == set(DATASETS) - not_in_the_paper


@pytest.mark.parametrize(
    ("name", "learning_rate", "draws", "step_size"),
    [
        ("pacs-resnet18", 5e-5, 10, 50),
        ("pacs-resnet50", 1e-5, 10, 50),
        ("office-home-resnet18", 1e-5, 5, 100),
        ("office-home-resnet50", 1e-5, 5, 100),
        ("rotated-mnist-resnet18", 5e-5, 10, 50),
        ("rotated-fashion-mnist-resnet18", 5e-5, 10, 50),
        ("pheme-distilbert", 3e-5, 10, 40),
    ],
)
def test_values_of_the_papers_table(name, learning_rate, draws, step_size):
    settings = settings_for(True, PRESETS[name].settings)
    assert settings.step_size == step_size
    assert settings.backbone_learning_rate == learning_rate
    assert settings.num_draws == draws


@every
def test_with_a_frozen_backbone_a_preset_sets_heads_and_energies_alone(name):
    preset = PRESETS[name]
    layer = preset.layer(False)
    frozen = settings_for(False, layer)
    assert {key.partition(".")[0] for key in preset.settings.keys() - layer.keys()} <= set(OF_BACKBONE)
    assert frozen == frozen.changed(layer)
    for key in OF_BACKBONE:
        assert getattr(frozen, key) == getattr(FitSettings(), key), key
    assert preset.layer(True) == preset.settings


@pytest.mark.parametrize("shifts", ["noise", "corruptions"])
def test_the_presets_of_corruptions_fit_a_single_source(tmp_path, shifts):
    source = tiny_images().without(("b", "c"))
    preset = "cifar10-c-resnet18" + "-corruptions" * (shifts == "corruptions")
    small = {"image_size": 32, "batch_size": 8, "num_draws": 2, "num_steps": 2, "train.num_steps": 2}
    small |= {"recipe": "joint"}
    model = fit_tiny(source, tmp_path / "run", target=(), preset=preset, settings=small)
    assert model.info["training"]["settings"]["shifts"] == shifts
    assert model.sources == ("a",)


def test_given_settings_override_the_preset(tmp_path):
    model = fit_tiny(tiny_images(), tmp_path / "run", freeze=True, preset="pacs-resnet18")
    settings = model.info["training"]["settings"]
    assert model.info["training"]["backbone"] == "tiny:conv"
    assert (settings["head"], settings["learning_rate"], settings["num_draws"]) == ("prototype", 1e-4, 10)
    assert settings["max_iter"] == TINY["max_iter"]


def test_features_ignore_the_presets_backbone(tmp_path):
    model = fit_tiny(tiny_features(), tmp_path / "run", preset="pacs-resnet18")
    assert model.backbone is None
    assert model.info["training"]["settings"]["head"] == "prototype"
    with pytest.raises(InputError, match="Features need no backbone, but 'timm:resnet50' was given"):
        fit_tiny(tiny_features(), tmp_path / "other", preset="pacs-resnet18", backbone="timm:resnet50")


@pytest.mark.parametrize(
    ("name", "data"), [("rotated-mnist-resnet18", tiny_images), ("pheme-distilbert", tiny_texts)]
)
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"learning_rate": 1e-9, "backbone_learning_rate": 0.0}, r"learned nothing .*Raise `learning_rate`"),
        ({"learning_rate": 1e-3, "kl_weight": 100.0}, r"learns almost nothing .*Lower `kl_weight`"),
    ],
)
def test_a_preset_that_learns_nothing_stops_and_says_why(name, data, wrong, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "PATIENCE", 120)
    small = {"max_iter": 10_000, "batch_size": 8, "train.num_steps": 2, "train.num_draws": 1}
    with pytest.raises(TrainingError, match=reason):
        fit_tiny(data(), tmp_path / "run", preset=name, settings={"recipe": "joint", **small, **wrong})
