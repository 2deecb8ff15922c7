"""MALA: the formulas of eq. 2, and the moments of the density that its samples should follow.

Moments are estimated from many independent chains. Each chain's time average is one observation, so the
standard error is the standard deviation between chains over the square root of their number, whatever the
correlation within a chain. A uniform number of 0 accepts every proposal, which is eq. 2 without correction.
"""

import math

import pytest
import torch
from torch import Tensor

from sourceward.samplers import Noise, State, StepSettings, generator_noise, mala, run
from tests.helpers import make_generator, quadratic, random_weights, target_of

CHAINS, STEPS, BURN_IN = 4000, 260, 60
UNBOUNDED = 1e6
"""A clip that never binds."""


def moment(
    settings: StepSettings, adjusted: bool, dim: int = 1, curvature: float = 1.0, power: int = 2
) -> tuple[float, float]:
    """Mean of x^power over chains, and its standard error."""
    start = torch.zeros(1, CHAINS, dim, dtype=torch.float64)
    target = quadratic(torch.full((dim,), curvature, dtype=torch.float64))
    noise = generator_noise(make_generator(3), start)

    def unadjusted(k: int) -> Noise:
        return noise(k)._replace(uniform=torch.zeros(1, CHAINS, dtype=torch.float64))

    chain = run("mala", start, target, settings, STEPS, noise if adjusted else unadjusted, record=True)
    per_chain = (chain.trajectory[BURN_IN:, 0] ** power).mean((0, -1))
    return per_chain.mean().item(), per_chain.std().item() / math.sqrt(CHAINS)


def errors_from(expected: float, settings: StepSettings, adjusted: bool = True, **options) -> float:
    """Distance of the estimate from `expected` in standard errors."""
    mean, standard_error = moment(settings, adjusted, **options)
    return abs(mean - expected) / standard_error


def one_step(feature: Tensor, settings: StepSettings, target, noise: Noise):
    energy, grad = target.energy_and_grad(feature)
    return mala(State(feature, energy, grad, torch.zeros_like(feature)), target, noise, settings)


@pytest.mark.parametrize("step_size", [0.5, 1.0, 2.5])
def test_variance_of_the_unadjusted_chain_is_that_of_its_discretisation(step_size):
    """x <- r x + N(0, lambda), r = 1 - lambda/2, has variance lambda / (1 - r^2) = 1 / (1 - lambda/4)."""
    settings = StepSettings(step_size=step_size, clip=UNBOUNDED)
    assert errors_from(1 / (1 - step_size / 4), settings, adjusted=False) < 4.5
    # The estimate is precise enough to see the bias.
    assert errors_from(1.0, settings, adjusted=False) > 20


def test_effective_sample_size_agrees_with_the_deviation_between_chains():
    """x^2 of an AR(1) chain decorrelates as rho^(2k), which predicts the standard error used above."""
    step_size = 1.0
    rho, variance, kept = 1 - step_size / 2, 1 / (1 - step_size / 4), STEPS + 1 - BURN_IN
    effective = CHAINS * kept * (1 - rho**2) / (1 + rho**2)
    predicted = variance * math.sqrt(2 / effective)
    _, standard_error = moment(StepSettings(step_size=step_size, clip=UNBOUNDED), adjusted=False)
    # A standard deviation from n chains is known to 1/sqrt(2n); 1/kept for the chain's finite length.
    assert standard_error == pytest.approx(predicted, rel=5 / math.sqrt(2 * CHAINS) + 1 / kept)


@pytest.mark.parametrize("step_size", [1.0, 2.5])
def test_moments_are_unbiased_where_the_unadjusted_chain_is_biased(step_size):
    settings = StepSettings(step_size=step_size, clip=UNBOUNDED)
    assert errors_from(1.0, settings) < 4.5
    assert errors_from(3.0, settings, power=4) < 4.5
    assert errors_from(0.0, settings, power=1) < 4.5
    assert errors_from(1.0, settings, adjusted=False) > 20


def test_moments_are_unbiased_where_the_clip_binds():
    """The clipped gradient is the drift in both directions, so the ratio corrects for it."""
    settings = StepSettings(step_size=1.5, clip=0.2)
    assert errors_from(1.0, settings) < 4.5
    assert errors_from(3.0, settings, power=4) < 4.5
    assert errors_from(1.0, settings, adjusted=False) > 20


def test_moments_are_unbiased_in_several_dimensions_and_with_another_variance():
    settings, options = StepSettings(step_size=0.3, clip=UNBOUNDED), {"dim": 4, "curvature": 4.0}
    assert errors_from(0.25, settings, **options) < 4.5
    assert errors_from(0.25, settings, adjusted=False, **options) > 20


def test_the_proposal_is_the_formula():
    weights = random_weights(2, 3)
    feature, z, eps = torch.randn(3, 2, 4, 3, generator=make_generator(), dtype=torch.float64)
    target = target_of(weights, z)
    settings = StepSettings(step_size=0.5, clip=0.02, noise_std=123.0)  # noise_std is not used
    new, info = one_step(feature, settings, target, Noise(eps, torch.zeros(2, 4, dtype=torch.float64)))
    assert info.accepted.all()
    _, grad = target.energy_and_grad(feature)
    expected = feature - 0.25 * grad.clamp(-0.02, 0.02) + math.sqrt(0.5) * eps
    torch.testing.assert_close(new.feature, expected)
    for cached, fresh in zip((new.energy, new.grad), target.energy_and_grad(new.feature)):
        torch.testing.assert_close(cached, fresh)


def test_the_acceptance_probability_is_the_ratio_of_normal_densities():
    """A uniform just below the acceptance probability accepts, one just above refuses."""
    feature = torch.tensor([[[0.3, -1.2]]], dtype=torch.float64)
    eps = torch.tensor([[[1.5, -0.7]]], dtype=torch.float64)
    step, clip, target = 0.8, 0.5, quadratic(torch.tensor([1.0, 2.0], dtype=torch.float64))

    def proposal(x: Tensor) -> torch.distributions.Normal:
        grad = target.energy_and_grad(x)[1].clamp(-clip, clip)
        return torch.distributions.Normal(x - step / 2 * grad, math.sqrt(step))

    end = proposal(feature).mean + math.sqrt(step) * eps
    log_ratio = (proposal(end).log_prob(feature) - proposal(feature).log_prob(end)).sum(-1)
    probability = torch.exp(target.energy(feature) - target.energy(end) + log_ratio)
    assert 0.01 < probability.item() < 0.99
    settings = StepSettings(step_size=step, clip=clip)
    for factor, accepted in [(0.999, True), (1.001, False)]:
        new, info = one_step(feature, settings, target, Noise(eps, factor * probability))
        assert info.accepted.item() is accepted
        torch.testing.assert_close(new.feature, end if accepted else feature)
