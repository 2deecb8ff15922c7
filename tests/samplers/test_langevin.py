"""Langevin steps equal their formula."""

import pytest
import torch

from sourceward.samplers import Noise, State, StepSettings, langevin, langevin_unchecked
from tests.helpers import make_generator, random_weights, target_of

SETTINGS = StepSettings(step_size=3.0, noise_std=0.1, clip=0.02)


@pytest.mark.parametrize("step", [langevin, langevin_unchecked])
def test_the_step_is_the_formula(step):
    weights = random_weights(2, 3)
    feature, z, eps = torch.randn(3, 2, 40, 3, generator=make_generator(), dtype=torch.float64)
    target = target_of(weights, z)
    energy, grad = target.energy_and_grad(feature)
    state = State(feature, energy, grad, torch.zeros_like(feature))
    new, info = step(state, target, Noise(eps, torch.rand(2, 40)), SETTINGS)

    noisy = (feature + 0.1 * eps).requires_grad_()
    (grad,) = torch.autograd.grad(target.energy(noisy).sum(), noisy)
    assert (grad.abs() > 0.02).any()
    assert (grad.abs() < 0.02).any()
    proposal = noisy.detach() - 3.0 * grad.clamp(-0.02, 0.02)
    torch.testing.assert_close(info.origin, noisy.detach())
    torch.testing.assert_close(info.proposed_energy, target.energy(proposal))
    if step is langevin:
        assert torch.equal(info.accepted, info.proposed_energy <= energy)
        assert 0 < info.accepted.double().mean() < 1
    else:
        assert info.accepted.all()
    torch.testing.assert_close(new.feature, torch.where(info.accepted.unsqueeze(-1), proposal, feature))
    torch.testing.assert_close(new.energy, target.energy(new.feature))
