"""The distilled one-step sampler: it ends about where a long chain does, and is saved with the model."""

import copy

import numpy as np
import pytest
import torch

from sourceward import EnergyAdapter, InputError
from sourceward.fitting import fit
from sourceward.functional import row_keys
from sourceward.functional.distilled import DistilledWeights, StartPoint, distilled_step
from sourceward.model import load
from sourceward.nn import DistilledStep, folded
from sourceward.samplers import StepSettings, run_chain
from sourceward.training.distillation import distil
from tests.helpers import QUICK, make_domains, make_generator

X, Y, SOURCE = make_domains(rows=60)
TARGET = make_domains(rows=60, sources=1, seed=1)[0] + 1.0


def fitted(**params) -> EnergyAdapter:
    return EnergyAdapter(**{**QUICK, "max_iter": 60, **params}).fit(X, Y, sample_domain=SOURCE)


@pytest.fixture(scope="module")
def est() -> EnergyAdapter:
    return fitted(sampler="distilled", num_steps=1, train=QUICK["train"] | {"distilled_steps": 30})


def ends(est: EnergyAdapter, sampler: str, num_steps: int):
    est = copy.deepcopy(est).set_params(sampler=sampler, num_steps=num_steps, noise_std=0.0)
    return est.adapt(TARGET)


def test_it_ends_about_where_the_chain_does(est):
    """From samples of the sources, most of them under the energy of another source."""
    network, step = est.network_, StepSettings(noise_std=0.0)
    feature = network.features(torch.from_numpy(X.astype(np.float32)))
    fold = folded(network)
    start = feature.expand(3, -1, -1)
    bias = fold.energy.bias(fold.latent(feature).mean.expand(3, -1, -1))
    at, keys = StartPoint.of(fold.energy, start, bias), row_keys(feature)
    end = run_chain("langevin", start, fold.energy, bias, step, 30, keys).feature

    def left(step: DistilledStep) -> float:
        """Share of the distance that is left."""
        apart = distilled_step(step.weights(), at) - end
        return float((apart.norm(dim=-1) / (end - start).norm(dim=-1)).mean())

    straight = DistilledStep(3, 6, 6, reach=30 * step.step_size).requires_grad_(False)
    trained = distil(network, feature, step, 30, 150)
    assert left(trained) < 0.3
    assert left(trained) < 0.8 * left(straight), "better than a straight line"


def test_untrained_it_is_a_straight_step():
    """The formula, written out."""
    network = fitted().network_
    fold = folded(network)
    x = torch.randn(3, 5, 6, generator=make_generator())
    at = StartPoint.of(fold.energy, x, fold.energy.bias(0.5 * x))
    straight = DistilledStep(3, at.hidden.shape[-1], 6, reach=7.0).requires_grad_(False)
    straight.reset_parameters(make_generator())
    torch.testing.assert_close(distilled_step(straight.weights(), at), x - 7.0 * at.grad)


def test_it_never_raises_the_energy_and_refines_from_where_it_landed(est):
    one = ends(est, "distilled", 1)
    more = copy.deepcopy(est).set_params(num_steps=6, noise_std=0.0).adapt(TARGET, trajectory=True)
    assert (one.energy_after <= one.energy_before).all()
    assert (one.energy_after < one.energy_before).mean() > 0.8
    assert (more.energy_after <= one.energy_after + 1e-6).all()
    assert more.trajectory.shape[1] == 7
    np.testing.assert_allclose(more.trajectory[:, 1], one.features, atol=1e-5)
    assert more.steps.max() > 1


def test_a_step_that_would_raise_the_energy_is_not_taken(est):
    fold = folded(est.network_)
    x = est.network_.features(torch.from_numpy(TARGET.astype(np.float32))).expand(3, -1, -1)
    bias = fold.energy.bias(fold.latent(x[0]).mean.expand(3, -1, -1))
    assert fold.distilled is not None
    uphill = DistilledWeights(*fold.distilled)._replace(
        scale=fold.distilled.scale * 0, outer=fold.distilled.outer * 0
    )
    there = run_chain(
        "distilled", x, fold.energy, bias, StepSettings(noise_std=0.0), 1, row_keys(x[0]),
        distilled=uphill._replace(length=uphill.length + 20),
    )  # fmt: skip
    refused = there.steps == 0
    assert refused.any()
    assert torch.equal(there.feature[refused], x[refused])


def test_single_rows_have_the_bits_of_the_batch(est):
    whole = est.predict_proba(TARGET)
    assert np.array_equal(est.predict_proba(TARGET[:1]), whole[:1])
    assert np.array_equal(est.predict_proba(TARGET[::-1])[::-1], whole)


def test_it_is_saved_and_loaded_with_the_estimator(est, tmp_path):
    est.save(tmp_path / "est.safetensors")
    again = EnergyAdapter.load(tmp_path / "est.safetensors")
    assert np.array_equal(again.predict_proba(TARGET), est.predict_proba(TARGET))


def test_it_is_fitted_only_with_its_sampler():
    est = fitted(max_iter=5)
    assert est.network_.distilled is None
    with pytest.raises(InputError, match="sampler='distilled'"):
        est.set_params(sampler="distilled").predict(X)


def test_the_rest_of_the_network_is_the_same_with_and_without():
    plain, distilling = fitted(max_iter=5), fitted(max_iter=5, sampler="distilled")
    theirs = distilling.network_.state_dict()
    for name, value in plain.network_.state_dict().items():
        assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize("head", ["prototype", "concat", "linear"])
def test_every_head_can_use_it(head):
    est = fitted(head=head, sampler="distilled", num_steps=2, max_iter=10)
    assert np.isfinite(est.predict_proba(TARGET)).all()


def test_the_same_seed_gives_the_same_weights(est):
    feature = est.network_.features(torch.from_numpy(X.astype(np.float32)))
    one, same, other = (
        distil(est.network_, feature, StepSettings(), 3, 4, seed).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["outer"], other["outer"])


@pytest.mark.parametrize("learned", [False, True])
def test_a_model_folder_holds_it(tmp_path, learned):
    names = np.array(["a", "b", "c"])
    np.savez(
        tmp_path / "f.npz",
        features=X.astype(np.float32),
        label=Y,
        domain=SOURCE,
        domains=names,
        classes=names,
    )
    settings = {**QUICK, "num_steps": 2, "sampler": "distilled", "max_iter": 10, "train.distilled_steps": 10}
    settings["aggregation"] = "learned" if learned else "energy"
    model = fit(tmp_path / "f.npz", out=tmp_path / "run", settings=settings, device="cpu", progress=False)
    again = load(tmp_path / "run", "cpu")
    assert (again.settings.source_weights is not None) == learned
    rows = TARGET.astype(np.float32)
    assert np.array_equal(again.predict_proba(rows), model.predict_proba(rows))
    assert again.settings == model.settings
