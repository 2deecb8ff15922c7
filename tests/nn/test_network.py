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
    assert (network.energy.weights().latent is not None) == uses
    feature = torch.randn(SOURCES, 4, DIM, generator=make_generator())
    assert (network.prior(feature) is not None) == uses
    assert (network.posterior(network.centers) is not None) == uses


def test_prior_and_posterior_are_one_network():
    network = make_network()
    feature = torch.randn(SOURCES, 4, DIM, generator=make_generator())
    assert all(torch.equal(a, b) for a, b in zip(network.prior(feature), network.posterior(feature)))


def test_features_are_centred_and_their_mean_norm_is_the_square_root_of_the_width():
    network = make_network()
    raw = 1000 + 40 * torch.rand(500, DIM, generator=make_generator())
    network.fit_scale(raw)
    feature = network.features(raw)
    torch.testing.assert_close(feature.mean(0), torch.zeros(DIM), atol=1e-4, rtol=0)
    assert feature.norm(dim=-1).mean().item() == pytest.approx(math.sqrt(DIM), rel=1e-5)
    # One number for all directions: ratios of distances are kept.
    torch.testing.assert_close(torch.pdist(feature), torch.pdist(raw) * network.scale)


def test_raw_undoes_the_rescaling():
    network = make_network()
    raw = 5 + 40 * torch.rand(50, DIM, generator=make_generator())
    network.fit_scale(raw)
    torch.testing.assert_close(network.raw(network.features(raw)), raw)


def test_features_are_scaled_inputs_or_scaled_backbone_outputs():
    inputs = torch.randn(4, DIM, generator=make_generator())
    assert torch.equal(make_network().features(inputs), inputs)
    backbone = nn.Linear(DIM, DIM)
    network = make_network(backbone=backbone)
    network.scale.fill_(3.0)
    network.shift.fill_(2.0)
    torch.testing.assert_close(network.features(inputs), 3 * (backbone(inputs) - 2))


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


def test_a_missing_class_gets_the_mean_centre_of_the_sources_that_have_it():
    network = Network(3, 2, DIM)
    for source, value in [(0, 2.0), (2, 4.0)]:
        network.fit_centers(source, torch.full((1, DIM), value), torch.tensor([0]))
        network.fit_centers(source, torch.full((1, DIM), -value), torch.tensor([1]))
    network.fit_centers(1, torch.ones(1, DIM), torch.tensor([1]))
    network.fill_centers()
    assert network.centers.mean(-1).tolist() == [[2.0, -2.0], [3.0, 1.0], [4.0, -4.0]]


def test_scale_and_centers_travel_with_the_state():
    network, other = make_network(), make_network()
    network.fit_scale(torch.arange(2.0 * DIM).reshape(2, DIM))
    network.fit_centers(0, torch.ones(2, DIM), torch.tensor([0, 1]))
    other.load_state_dict(network.state_dict())
    for name in ("shift", "scale", "centers"):
        assert torch.equal(getattr(other, name), getattr(network, name))
        assert getattr(network, name).any()
        assert name not in dict(network.named_parameters())
