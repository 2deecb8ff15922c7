"""Oracles use the true label; they bound what adaptation could reach."""

import pytest
import torch

from sourceward.algorithm import adapt
from sourceward.functional import Gaussian, oracle_latent, oracle_source
from sourceward.nn import Network
from sourceward.settings import AdaptSettings


def test_oracle_latent_is_the_posterior_of_the_true_class():
    mean = torch.arange(12.0).view(2, 3, 2)
    latent = oracle_latent(Gaussian(mean, mean + 1), torch.tensor([2, 0]))
    assert torch.equal(latent.mean, mean[:, [2, 0]])
    assert torch.equal(latent.std, mean[:, [2, 0]] + 1)


def test_oracle_source_has_the_highest_probability_of_the_true_class():
    probability = torch.tensor([[[0.9, 0.1], [0.9, 0.1]], [[0.2, 0.8], [0.2, 0.8]]])
    assert torch.equal(
        oracle_source(probability, torch.tensor([0, 1])), torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    )


@pytest.mark.parametrize("num_draws", [0, 3])
def test_the_chain_uses_an_oracle_latent(num_draws):
    torch.manual_seed(0)
    network = Network(2, 3, 4).eval()
    network.centers.normal_()
    feature, label = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    latent = oracle_latent(network.posterior(network.centers), label)
    settings = AdaptSettings(num_steps=3, num_draws=num_draws)
    keys = torch.arange(5)
    oracle = adapt(network, feature, keys, settings, latent=latent)
    assert oracle.probability.shape == (5, 3)
    assert not torch.equal(oracle.chain.feature, adapt(network, feature, keys, settings).chain.feature)
