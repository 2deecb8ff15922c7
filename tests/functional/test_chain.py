"""The energy of the fast chain against `functional.energy` and autograd."""

import pytest
import torch

from sourceward.functional import ChainWeights, energy, energy_and_grad, latent_bias
from sourceward.functional.chain import Lookahead, Workspace
from tests.helpers import make_generator, random_weights


@pytest.mark.parametrize("latent", [False, True])
def test_energy_and_gradient_equal_autograd(latent):
    weights = random_weights(3, 5, latent=latent)
    x, z = torch.randn(2, 3, 4, 5, generator=make_generator(), dtype=torch.float64)
    chain, bias = ChainWeights.of(weights), latent_bias(weights, z)
    x.requires_grad_()
    expected = energy(weights, x, bias)
    (grad,) = torch.autograd.grad(expected.sum(), x)
    with torch.no_grad():
        a0 = chain.first(x, chain.bias(z))
        value, ours = chain.energy_and_grad(a0)
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours, grad, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(chain.energy(a0), energy_and_grad(weights, x, bias)[0])


def test_a_conditional_energy_needs_a_latent():
    with pytest.raises(ValueError, match="Expected `latent`"):
        ChainWeights.of(random_weights(2, 5)).bias(None)


def test_a_workspace_is_reusable_and_scales_the_gradient():
    weights = random_weights(2, 5)
    chain = ChainWeights.of(weights)
    first, second = torch.randn(2, 2, 4, chain.up.shape[-1], dtype=torch.float64)
    space = Workspace(chain, first, scale=-3.0)
    for a0 in (first, second, first):
        value, back = space.backward_to_first(a0)
        expected_value, expected = chain.energy_and_grad(a0)
        torch.testing.assert_close(back @ chain.down, -3 * expected)
        torch.testing.assert_close(value, expected_value)
        torch.testing.assert_close(space.energy(a0), expected_value)


def test_lookahead_equals_a_workspace():
    chain = ChainWeights.of(random_weights(2, 5))
    space, ahead = (kind(chain, torch.empty(2, 4, 6).double(), scale=-3.0) for kind in (Workspace, Lookahead))
    for seed in (0, 1):
        end, lift = torch.randn(2, 2, 4, 6, generator=make_generator(seed), dtype=torch.float64)
        torch.testing.assert_close(ahead.energy_and_ahead(end, lift), space.energy(end))
        torch.testing.assert_close(ahead.origin, end + lift)
        torch.testing.assert_close(ahead.backward_ahead(), space.backward_to_first(end + lift)[1])
