"""Network: the parts together, the feature scale and the class centres."""

import math

import pytest
import torch
from torch import nn

from sourceward.nn import HEADS, Network
from tests.helpers import make_generator

SOURCES, CLASSES, DIM = 2, 3, 6


def make_network(**options) -> Network:
    torch.manual_seed(0)
    return Network(SOURCES, CLASSES, DIM, **options)


@pytest.mark.parametrize("head", list(HEADS))
def test_a_latent_network_exists_where_the_head_uses_one(head):
    network = make_network(head=head)
    uses = network.head.uses_latent
    assert (network.latent is not None) == uses
    assert (network.energy_weights().latent is not None) == uses
    feature = torch.randn(SOURCES, 4, DIM, generator=make_generator())
    assert (network.prior(feature) is not None) == uses
    assert (network.posterior(network.centers) is not None) == uses


def test_prior_and_posterior_are_one_network():
    network = make_network()
    feature = torch.randn(SOURCES, 4, DIM, generator=make_generator())
    assert all(torch.equal(a, b) for a, b in zip(network.prior(feature), network.posterior(feature)))


def test_scale_brings_the_mean_norm_to_the_square_root_of_the_width():
    network = make_network()
    raw = 40 * torch.rand(500, DIM, generator=make_generator())
    network.fit_scale(raw)
    assert network.features(raw).norm(dim=-1).mean().item() == pytest.approx(math.sqrt(DIM), rel=1e-5)
    # One number: directions and ratios of norms are kept.
    torch.testing.assert_close(network.features(raw) / raw, network.scale.expand(500, DIM))


def test_features_are_scaled_inputs_or_scaled_backbone_outputs():
    inputs = torch.randn(4, DIM, generator=make_generator())
    assert torch.equal(make_network().features(inputs), inputs)
    backbone = nn.Linear(DIM, DIM)
    network = make_network(backbone=backbone)
    network.scale.fill_(3.0)
    torch.testing.assert_close(network.features(inputs), 3 * backbone(inputs))


def test_centers_of_a_source_are_class_means_and_the_others_stay():
    network = make_network()
    feature = torch.tensor([[1.0] * DIM, [3.0] * DIM, [10.0] * DIM])
    count = network.fit_centers(1, feature, torch.tensor([0, 0, 2]))
    assert count.tolist() == [2, 0, 1]
    assert network.centers[1].mean(-1).tolist() == [2.0, 0.0, 10.0]
    assert (network.centers[0] == 0).all()
    # A class that is missing the next time keeps what was stored.
    network.fit_centers(1, feature[:1], torch.tensor([1]))
    assert network.centers[1].mean(-1).tolist() == [2.0, 1.0, 10.0]


def test_batch_centers_fall_back_on_stored_ones():
    network = make_network()
    network.centers.fill_(7.0)
    feature = torch.ones(SOURCES, 2, DIM, requires_grad=True)
    label = torch.tensor([[0, 0], [1, 2]])
    centers = network.batch_centers(feature, label)
    assert centers.mean(-1).tolist() == [[1.0, 7.0, 7.0], [7.0, 1.0, 1.0]]
    centers.sum().backward()
    assert (feature.grad != 0).all()


def test_scale_and_centers_travel_with_the_state():
    network, other = make_network(), make_network()
    network.fit_scale(torch.full((2, DIM), 5.0))
    network.fit_centers(0, torch.ones(2, DIM), torch.tensor([0, 1]))
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.scale, network.scale)
    assert torch.equal(other.centers, network.centers)
    assert not any(name in dict(network.named_parameters()) for name in ("scale", "centers"))
