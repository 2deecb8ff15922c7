"""Settings that make no sense are refused where they are written."""

import dataclasses

import pytest

from sourceward import InputError
from sourceward.samplers import StepSettings
from sourceward.settings import AdaptSettings, LoopSettings, TrainSettings
from sourceward.training.configuration import FitSettings
from sourceward.training.finetune import FineTuneSettings


@pytest.mark.parametrize(
    ("kind", "name", "value", "says"),
    [
        (TrainSettings, "num_steps", 0, "Expected training `num_steps` to be 1 or more, but got 0"),
        (TrainSettings, "guide", "some", "Expected `guide` to be 'all' or 'last', but got 'some'"),
        (AdaptSettings, "num_steps", -3, "Expected `num_steps` to be 0 or more, but got -3. Use 0"),
        (AdaptSettings, "num_steps", "three", "got 'three'. Use 0 to predict without adaptation or 'auto'"),
        (AdaptSettings, "num_draws", -1, "Expected `num_draws` to be 0 or more, but got -1"),
        (LoopSettings, "max_iter", 0, "Expected `max_iter` to be 1 or more, but got 0"),
        (LoopSettings, "batch_size", -4, "Expected `batch_size` to be 1 or more, but got -4"),
        (LoopSettings, "schedule", "linear", "Expected `schedule` to be 'cosine', 'step' or 'constant'"),
        (LoopSettings, "average", 1.5, r"Expected `average` to be in \[0, 1\], but got 1.5"),
        (LoopSettings, "average", float("nan"), r"Expected `average` to be in \[0, 1\], but got nan"),
        (FineTuneSettings, "average", 1.5, r"Expected `finetune.average` to be in \[0, 1\], but got 1.5"),
        (FitSettings, "validation_fraction", 1.5, "Expected `validation_fraction` to be between 0 and 1"),
        (AdaptSettings, "top", 0, "Expected `top` to be 1 or more, but got 0"),
        (AdaptSettings, "latent", "clas", "Unknown latent 'clas'. Did you mean 'class'"),
        (TrainSettings, "objective", "dms", "Unknown objective 'dms'. Did you mean 'dsm'"),
    ],
)
def test_refused(kind, name, value, says):
    with pytest.raises(InputError, match=says):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (AdaptSettings(sampler="nestrov"), "Unknown sampler 'nestrov'. Did you mean 'nesterov'"),
        (AdaptSettings(aggregation="maen"), "Unknown aggregation 'maen'. Did you mean 'mean'"),
        (
            AdaptSettings(step=StepSettings(accept="allways")),
            "Unknown accept rule 'allways'. Did you mean 'always'",
        ),
    ],
)
def test_names_are_looked_up_before_the_work(settings, says):
    with pytest.raises(InputError, match=says):
        settings.check()


@pytest.mark.parametrize("kind", [TrainSettings, AdaptSettings, LoopSettings])
def test_settings_are_plain_frozen_values(kind):
    settings = kind()
    assert settings == kind()
    assert dataclasses.replace(settings) == settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.max_iter = 3


def test_learned_votes_are_not_cut_short():
    AdaptSettings(aggregation="learned").check()
    with pytest.raises(InputError, match="leave `top` out"):
        AdaptSettings(aggregation="learned", top=1).check()
