"""Diagonal Gaussians against torch.distributions."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as reference_kl

from sourceward.functional import Gaussian, kl_divergence
from tests.helpers import make_generator


def make_gaussian(*shape: int, seed: int) -> Gaussian:
    generator = make_generator(seed)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Gaussian(mean, 0.1 + 2 * torch.rand(shape, generator=generator, dtype=torch.float64))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.integers(0, 10_000))
def test_kl_equals_torch_distributions(sources, batch, dim, seed):
    q = make_gaussian(sources, batch, dim, seed=seed)
    p = make_gaussian(sources, batch, dim, seed=seed + 1)
    expected = reference_kl(Independent(Normal(*q), 1), Independent(Normal(*p), 1))
    assert expected.shape == (sources, batch)
    torch.testing.assert_close(kl_divergence(q, p), expected, rtol=1e-12, atol=1e-12)


def test_kl_is_zero_only_at_itself_and_not_symmetric():
    q, p = make_gaussian(3, 4, seed=0), make_gaussian(3, 4, seed=1)
    assert (kl_divergence(q, q) == 0).all()
    assert (kl_divergence(q, p) > 0).all()
    assert not torch.allclose(kl_divergence(q, p), kl_divergence(p, q))


def test_sample_moments_are_within_monte_carlo_error():
    n, mean, std = 200_000, 1.5, 0.4
    gaussian = Gaussian(torch.full((n,), mean).double(), torch.full((n,), std).double())
    draw = gaussian.sample(make_generator())
    assert abs(draw.mean().item() - mean) < 5 * std / math.sqrt(n)
    assert abs(draw.var().item() - std**2) < 5 * std**2 * math.sqrt(2 / n)


def test_sample_is_reproducible_and_reparametrised():
    mean, std = (t.requires_grad_() for t in make_gaussian(2, 3, seed=0))
    gaussian = Gaussian(mean, std)
    draw = gaussian.sample(make_generator(7))
    assert torch.equal(draw, gaussian.sample(make_generator(7)))
    assert not torch.equal(draw, gaussian.sample(make_generator(8)))
    to_mean, to_std = torch.autograd.grad(draw.sum(), (mean, std))
    assert torch.equal(to_mean, torch.ones_like(mean))
    torch.testing.assert_close(to_std, ((draw - mean) / std).detach())


def test_gather_picks_the_class_of_each_row():
    classes = make_gaussian(2, 3, 4, seed=0)
    label = torch.tensor([[0, 2, 2, 1, 0], [1, 1, 0, 2, 2]])
    picked = classes.gather(label)
    assert picked.mean.shape == picked.std.shape == (2, 5, 4)
    for source in range(2):
        for row in range(5):
            assert torch.equal(picked.mean[source, row], classes.mean[source, label[source, row]])
            assert torch.equal(picked.std[source, row], classes.std[source, label[source, row]])


def test_detach_stops_the_gradient():
    mean, std = (t.requires_grad_() for t in make_gaussian(2, 3, seed=0))
    assert not any(t.requires_grad for t in Gaussian(mean, std).detach())
