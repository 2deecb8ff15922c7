"""`Trainer`: the forms of eq. 10 that its settings reach, from `fit` and from the estimator alike."""

from dataclasses import replace

import pytest

from sourceward import EnergyAdapter
from sourceward.algorithm import objective
from sourceward.functional import Coefficients
from sourceward.settings import TrainSettings
from sourceward.training import trainer as trainer_module
from tests.tiny_runs import TINY, fit_tiny, tiny_features, tiny_images

PRINTED = {"chain_latent": "posterior", "supervise": "last", "guide_kl_weight": 1.0, "num_draws": 3}
"""Eq. 10 as printed, with `kl_weight=1`: z from q(z|d), the end of a chain in the last line, and its KL."""

RELEASED = {"chain_latent": "both", "supervise": "all", "num_draws": 10, "guide_prototypes": True}
"""Eq. 10 as released, with `kl_weight=0.1`: two chains for each start; the last line has every step, no KL,
and trains the class prototypes."""

FORMS = [(PRINTED, 1.0, Coefficients.paper()), (RELEASED, 0.1, Coefficients())]


def by_estimator(settings, kl_weight, tmp_path):
    data = tiny_features()
    small = {"num_steps": 2, "chains": 4, **settings}
    adapter = EnergyAdapter(2, head="prototype", max_iter=2, batch_size=6, kl_weight=kl_weight, train=small)
    adapter.fit(data.items, data.labels, sample_domain=data.domains)


def by_fit(settings, kl_weight, tmp_path, **more):
    given = {f"train.{name}": value for name, value in settings.items()}
    given |= {"head": "prototype", "kl_weight": kl_weight, "max_iter": 2, **more}
    fit_tiny(tiny_images(), tmp_path / "run", settings=given, freeze=not more)


def by_joint_fit(settings, kl_weight, tmp_path):
    by_fit(settings, kl_weight, tmp_path, recipe="joint")


@pytest.mark.parametrize("train", [by_estimator, by_fit, by_joint_fit])
@pytest.mark.parametrize(("settings", "kl_weight", "coefficients"), FORMS, ids=["printed", "released"])
def test_the_forms_of_eq_10_are_reached(settings, kl_weight, coefficients, train, tmp_path, monkeypatch):
    seen = []

    def watched(network, replay, batch, given, terms, generator):
        seen.append((given, terms))
        return objective(network, replay, batch, given, terms, generator)

    monkeypatch.setattr(trainer_module, "objective", watched)
    train(settings, kl_weight, tmp_path)
    assert seen
    for given, terms in seen:
        assert terms == coefficients
        assert replace(given, **settings) == given
        assert given.num_steps == TINY["train.num_steps"] != TrainSettings.num_steps
