"""Denoising score matching: what the loss is at its known points, and that it teaches a score."""

import torch

from sourceward.functional import energy_and_grad, latent_bias
from sourceward.functional.score_matching import NOISE, corrupt, denoising_loss
from tests.helpers import make_generator, random_weights


def test_noise_has_the_size_that_is_told():
    clean = torch.zeros(2, 500, 64)
    noisy, sigma = corrupt(clean, make_generator())
    assert sigma.shape == (2, 500, 1)
    assert ((sigma >= NOISE[0]) & (sigma <= NOISE[1])).all()
    torch.testing.assert_close((noisy / sigma).std(), torch.tensor(1.0), rtol=0.02, atol=0)


def test_the_loss_is_that_of_one_step():
    weights = random_weights(2, 5)
    clean = torch.randn(2, 7, 5, generator=make_generator(1), dtype=torch.float64)
    noisy, sigma = corrupt(clean, make_generator(2))
    bias = latent_bias(weights, 0.5 * noisy)
    moved = noisy - 3.0 * energy_and_grad(weights, noisy, bias)[1]
    expected = (((moved - clean) / sigma) ** 2).mean()
    torch.testing.assert_close(denoising_loss(weights, noisy, clean, sigma, bias, 3.0), expected)
    standing = denoising_loss(weights, noisy, clean, sigma, bias, 0.0)
    torch.testing.assert_close(standing, ((noisy - clean) / sigma).square().mean())


def test_an_energy_learns_to_denoise():
    """Samples of one tight blob: a step that leads there removes most of the noise."""
    weights = random_weights(1, 4, hidden=16, narrow=8, latent=False, dtype=torch.float32)
    leaves = [w.requires_grad_() for w in weights if w is not None]
    optimizer = torch.optim.Adam(leaves, 0.01)
    generator, clean = make_generator(3), 0.05 * torch.randn(1, 256, 4, generator=make_generator(4))
    losses = []
    for _ in range(200):
        noisy, sigma = corrupt(clean, generator)
        loss = denoising_loss(weights, noisy, clean, sigma, latent_bias(weights, None), 10.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 < losses[0]
