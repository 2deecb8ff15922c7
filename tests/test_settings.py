"""Settings: defaults in one place, and values that make no sense are refused by name."""

import dataclasses
import inspect

import pytest

from sourceward import EnergyAdapter, InputError
from sourceward.samplers import StepSettings
from sourceward.settings import AdaptSettings, LoopSettings, TrainSettings
from sourceward.training.configuration import FitSettings
from sourceward.training.finetune import FineTuneSettings


@pytest.mark.parametrize(
    ("kind", "name", "value", "says"),
    [
        (TrainSettings, "num_steps", 0, "Expected training `num_steps` to be 1 or more, but got 0"),
        (TrainSettings, "supervise", "some", "Unknown supervise 'some'"),
        (TrainSettings, "chains", 0, "Expected training `chains` to be 1 or more, but got 0"),
        (TrainSettings, "components", 1.5, "Expected training `components` to be 1 or more, but got 1.5"),
        (TrainSettings, "replay_share", 1.5, "Expected `replay_share` to be from 0 to 1, but got 1.5"),
        (TrainSettings, "feature_noise", -1, "Expected `feature_noise` to be 0 or more, but got -1"),
        (AdaptSettings, "num_steps", -3, "Expected `num_steps` to be 0 or more, but got -3. Use 0"),
        (AdaptSettings, "num_steps", "three", "got 'three'. Use 0 to predict without adaptation or 'auto'"),
        (AdaptSettings, "num_draws", -1, "Expected `num_draws` to be 0 or more, but got -1"),
        (AdaptSettings, "sampler", "nestrov", "Unknown sampler 'nestrov'. Did you mean 'nesterov'"),
        (AdaptSettings, "aggregation", "maen", "Unknown aggregation 'maen'. Did you mean 'mean'"),
        (StepSettings, "step_size", -1, "`step_size` to be 0 or more, but got -1"),
        (LoopSettings, "max_iter", 0, "Expected `max_iter` to be 1 or more, but got 0"),
        (LoopSettings, "max_iter", True, "Expected `max_iter` to be 1 or more, but got True"),
        (LoopSettings, "batch_size", -4, "Expected `batch_size` to be 1 or more, but got -4"),
        (LoopSettings, "schedule", "cosin", "Unknown schedule 'cosin'. Did you mean 'cosine'"),
        (LoopSettings, "average", 1.5, "Expected `average` to be from 0 to 1, but got 1.5"),
        (LoopSettings, "average", float("nan"), "Expected `average` to be from 0 to 1, but got nan"),
        (
            LoopSettings,
            "learning_rate",
            float("inf"),
            "Expected `learning_rate` to be 0 or more, but got inf",
        ),
        (FineTuneSettings, "average", 1.5, "Expected `finetune.average` to be from 0 to 1, but got 1.5"),
        (FitSettings, "validation_fraction", 1.5, "Expected `validation_fraction` to be between 0 and 1"),
        (FitSettings, "crossfit", -0.1, "Expected `crossfit` to be from 0 to 1, but got -0.1"),
    ],
)
def test_refused(kind, name, value, says):
    with pytest.raises(InputError, match=says):
        kind(**{name: value})


@pytest.mark.parametrize("kind", [TrainSettings, AdaptSettings, LoopSettings])
def test_settings_are_plain_frozen_values(kind):
    settings = kind()
    assert settings == kind()
    assert dataclasses.replace(settings) == settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.max_iter = 3


def test_estimator_fit_and_settings_share_their_defaults():
    defaults = {name: p.default for name, p in inspect.signature(EnergyAdapter).parameters.items()}
    for kind, settings in (
        (LoopSettings, LoopSettings()),
        (AdaptSettings, AdaptSettings()),
        (StepSettings, StepSettings()),
    ):
        for field in dataclasses.fields(kind):
            if field.name in defaults and field.name != "num_steps":  # `auto` there
                assert defaults[field.name] == getattr(settings, field.name), field.name
    assert TrainSettings.of(defaults["train"]) == TrainSettings() == FitSettings().train
    assert FitSettings().kl_weight == defaults["kl_weight"]


def test_training_settings_by_name():
    assert TrainSettings.of({"chains": 4}) == TrainSettings(chains=4)
    with pytest.raises(InputError, match=r"Unknown training setting 'chain'\. Did you mean 'chains'"):
        TrainSettings.of({"chain": 4})
    with pytest.raises(InputError, match="`train` to be TrainSettings or a dictionary, but got 3"):
        TrainSettings.of(3)


@pytest.mark.parametrize("aggregation", ["energy", "learned", "mean", "closest"])
def test_off_is_no_steps_and_no_energy_weights(aggregation):
    settings = AdaptSettings(aggregation=aggregation)
    off = settings.off()
    assert (off.num_steps, off.is_off, settings.is_off) == (0, True, False)
    assert off.aggregation not in ("energy", "learned")
    assert AdaptSettings(num_steps=0, aggregation="energy").is_off is False, "energies weight the sources"
