"""Nesterov momentum: the formula, and faster descent than without."""

import pytest
import torch

from sourceward.samplers import Noise, State, StepSettings, generator_noise, nesterov, run
from tests.helpers import make_generator, quadratic

# Curvatures 1 and 100: the steep axis bounds the step size, so plain descent is slow along the flat one.
NARROW_VALLEY = quadratic(torch.tensor([1.0, 100.0], dtype=torch.float64))
QUIET = {"noise_std": 0.0, "clip": 1e6}


def energy_after(sampler: str, steps: int, **settings) -> float:
    start = torch.ones(1, 1, 2, dtype=torch.float64)
    noise = generator_noise(make_generator(), start)
    chain = run(sampler, start, NARROW_VALLEY, StepSettings(**(QUIET | settings)), steps, noise)
    return chain.energy_after.item()


@pytest.mark.parametrize("steps", [50, 100, 200])
def test_it_descends_faster_than_plain_descent_at_the_same_step_size(steps):
    plain = energy_after("langevin", steps, step_size=0.009)
    assert energy_after("nesterov", steps, step_size=0.009, momentum=0.9) < 0.1 * plain


def test_without_momentum_it_is_plain_descent():
    for steps in (1, 7):
        plain = energy_after("langevin", steps, step_size=0.009)
        assert energy_after("nesterov", steps, step_size=0.009, momentum=0.0) == plain


def test_the_step_is_the_formula():
    feature, velocity, eps = torch.randn(3, 1, 5, 2, generator=make_generator(), dtype=torch.float64)
    settings = StepSettings(step_size=0.01, noise_std=0.1, clip=0.8, momentum=0.7)
    energy, grad = NARROW_VALLEY.energy_and_grad(feature)
    state = State(feature, energy, grad, velocity)
    new, info = nesterov(state, NARROW_VALLEY, Noise(eps, torch.rand(1, 5)), settings)

    noisy = feature + 0.1 * eps
    ahead = NARROW_VALLEY.energy_and_grad(noisy + 0.7 * velocity)[1].clamp(-0.8, 0.8)
    torch.testing.assert_close(info.origin, noisy + 0.7 * velocity)
    assert 0 < info.accepted.sum() < 5
    momentum, row = 0.7 * velocity - 0.01 * ahead, info.accepted.unsqueeze(-1)
    torch.testing.assert_close(new.momentum, torch.where(row, momentum, torch.zeros_like(momentum)))
    torch.testing.assert_close(new.feature, torch.where(row, noisy + momentum, feature))
    torch.testing.assert_close(new.energy, NARROW_VALLEY.energy(new.feature))


def test_a_refused_step_drops_its_momentum():
    feature = torch.tensor([[[0.1, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    velocity = torch.tensor([[[1.0, 0.0], [-0.5, 0.0]]], dtype=torch.float64)  # uphill, downhill
    settings = StepSettings(step_size=0.001, noise_std=0.0, clip=1e6)
    state = State(feature, *NARROW_VALLEY.energy_and_grad(feature), velocity)
    new, info = nesterov(state, NARROW_VALLEY, Noise(torch.zeros_like(feature), torch.rand(1, 2)), settings)
    assert info.accepted.tolist() == [[False, True]]
    assert torch.equal(new.feature[0, 0], feature[0, 0])
    assert (new.momentum[0, 0] == 0).all()
    assert (new.momentum[0, 1] != 0).any()
