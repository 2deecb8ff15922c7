"""The stacked energy against an ordinary network, its closed-form gradient against autograd."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu

from sourceward.functional import (
    EnergyWeights,
    Masks,
    energy,
    energy_and_grad,
    latent_bias,
    swish,
    swish_grad,
)
from tests.helpers import make_generator, random_weights

sizes = st.fixed_dictionaries(
    {
        "sources": st.integers(1, 5),
        "batch": st.integers(1, 6),
        "dim": st.integers(1, 9),
        "hidden": st.integers(1, 8),
        "narrow": st.integers(1, 7),
        "latent": st.booleans(),
        "seed": st.integers(0, 10_000),
    }
)


def sample(sources: int, batch: int, dim: int, latent: bool, seed: int) -> tuple[Tensor, Tensor | None]:
    generator = make_generator(seed + 1)
    feature = 2 * torch.randn(sources, batch, dim, generator=generator, dtype=torch.float64)
    z = torch.randn(sources, batch, dim, generator=generator, dtype=torch.float64) if latent else None
    return feature, z


def one_energy(weights: EnergyWeights, source: int, x: Tensor, z: Tensor | None) -> Tensor:
    """Method.md's two layers for one sample of one source, without a batch."""
    a0 = weights.feature[source] @ x + weights.hidden_bias[source]
    if z is not None:
        a0 = a0 + weights.latent[source] @ z
    a1 = weights.narrow[source] @ silu(a0) + weights.narrow_bias[source]
    return torch.sigmoid(weights.out[source] @ silu(a1) + weights.out_bias[source])


@given(sizes)
def test_closed_form_gradient_equals_autograd(size):
    batch = size.pop("batch")
    weights = random_weights(**size)
    feature, z = sample(size["sources"], batch, size["dim"], size["latent"], size["seed"])
    feature.requires_grad_()
    bias = latent_bias(weights, z)
    value = energy(weights, feature, bias)
    (expected,) = torch.autograd.grad(value.sum(), feature)

    closed_value, closed_grad = energy_and_grad(weights, feature.detach(), bias)

    assert torch.equal(closed_value, value.detach())
    assert (closed_grad - expected).abs().max() <= 1e-10


@given(sizes)
def test_stack_equals_one_source_and_one_sample_at_a_time(size):
    batch = size.pop("batch")
    weights = random_weights(**size)
    feature, z = sample(size["sources"], batch, size["dim"], size["latent"], size["seed"])
    stacked = energy(weights, feature, latent_bias(weights, z))
    assert stacked.shape == (size["sources"], batch)
    for source in range(size["sources"]):
        for row in range(batch):
            one = one_energy(weights, source, feature[source, row], None if z is None else z[source, row])
            torch.testing.assert_close(stacked[source, row], one, rtol=0, atol=1e-12)


def test_gradient_is_differentiable_in_the_weights():
    weights = EnergyWeights(*(w.requires_grad_() for w in random_weights(2, 3)))
    feature, z = sample(2, 4, 3, True, 0)
    _, grad = energy_and_grad(weights, feature, latent_bias(weights, z))
    closed = torch.autograd.grad(grad.square().sum(), weights)

    feature.requires_grad_()
    value = energy(weights, feature, latent_bias(weights, z))
    (grad,) = torch.autograd.grad(value.sum(), feature, create_graph=True)
    double_backward = torch.autograd.grad(grad.square().sum(), weights)
    for a, b in zip(closed, double_backward):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_swish_and_its_derivative():
    a = torch.linspace(-12, 12, 101, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(swish(a), a / (1 + torch.exp(-a)))
    (expected,) = torch.autograd.grad(swish(a).sum(), a)
    torch.testing.assert_close(swish_grad(a.detach()), expected, rtol=0, atol=1e-14)


def test_hand_computed_value_and_gradient():
    # One unit per layer, all weights 1, all biases 0, at x = 0: a0 = a1 = 0, swish(0) = 0 and
    # swish'(0) = 1/2, so E = sigmoid(0) = 1/2 and dE/dx = 1/2 * 1/2 (sigmoid') * 1/2 * 1/2 = 1/16.
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    weights = EnergyWeights(one, None, zero, one, zero, one[0], zero[0])
    value, grad = energy_and_grad(weights, torch.zeros_like(one), latent_bias(weights, None))
    assert value.item() == 0.5
    assert grad.item() == 1 / 16


def test_masks_of_ones_change_nothing_and_of_zeros_leave_the_biases():
    weights = random_weights(2, 3, hidden=6, narrow=5)
    feature, z = sample(2, 4, 3, True, 0)
    bias = latent_bias(weights, z)
    ones = Masks(torch.ones(2, 4, 6, dtype=torch.float64), torch.ones(2, 4, 5, dtype=torch.float64))
    assert torch.equal(energy(weights, feature, bias, ones), energy(weights, feature, bias))

    no_narrow = ones._replace(narrow=torch.zeros_like(ones.narrow))
    expected = torch.sigmoid(weights.out_bias).unsqueeze(1).expand(2, 4)
    torch.testing.assert_close(energy(weights, feature, bias, no_narrow), expected)

    no_hidden = ones._replace(hidden=torch.zeros_like(ones.hidden))
    score = (weights.out * silu(weights.narrow_bias)).sum(-1) + weights.out_bias
    expected = torch.sigmoid(score).unsqueeze(1).expand(2, 4)
    torch.testing.assert_close(energy(weights, feature, bias, no_hidden), expected)


def test_latent_matters_only_to_an_energy_that_has_one():
    with_latent, without = random_weights(2, 3), random_weights(2, 3, latent=False)
    feature, z = sample(2, 4, 3, True, 0)
    a = energy(with_latent, feature, latent_bias(with_latent, z))
    b = energy(with_latent, feature, latent_bias(with_latent, z + 1))
    assert (a != b).all()
    assert torch.equal(latent_bias(without, z), latent_bias(without, None))


def test_missing_latent_is_an_error():
    with pytest.raises(ValueError, match="Expected `latent`"):
        latent_bias(random_weights(1, 2), None)


def test_detached_weights_share_values_and_carry_no_gradient():
    weights = EnergyWeights(*(w.requires_grad_() for w in random_weights(1, 2)))
    frozen = weights.detach()
    assert not any(w.requires_grad for w in frozen)
    assert all(torch.equal(a, b) for a, b in zip(frozen, weights))
    assert random_weights(1, 2, latent=False).detach().latent is None
