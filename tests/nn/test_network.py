"""Network: its parts, the scale and whitening of features, class centres and LDA."""

import math

import pytest
import torch
from torch import nn

from sourceward.functional import within_and_between_covariance
from sourceward.nn import HEADS, DistilledStep, Network
from sourceward.nn import network as module
from sourceward.nn.network import CLASSIFIER_WEIGHT
from tests.helpers import make_generator, two_shifted_sources

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


def whitened_network(head: str = "prototype") -> tuple[Network, torch.Tensor, torch.Tensor]:
    """A network whose scale, whitening and class centres are fitted, and the features and labels."""
    parts = two_shifted_sources()
    network, x = Network(2, 2, 5, head), torch.cat([x for x, _ in parts])
    network.fit_scale(x, within_and_between_covariance(parts))
    for source, (own, label) in enumerate(parts):
        network.fit_centers(source, network.features(own), label)
    return network, x, torch.cat([y for _, y in parts])


def test_whitened_features_have_the_norm_of_others_and_can_be_restored():
    network, x, _ = whitened_network()
    assert torch.allclose(network.features(x).norm(dim=1).mean(), torch.tensor(5**0.5), rtol=1e-5)
    assert torch.allclose(network.raw(network.features(x)), x, atol=1e-4)
    assert torch.equal(network.features(x[:1]), network.features(x)[:1])


def test_a_state_with_whitening_loads_into_a_fresh_network():
    fitted, x, _ = whitened_network()
    fresh = Network(2, 2, 5)
    fresh.load_state_dict(fitted.state_dict())
    assert torch.equal(fresh.features(x), fitted.features(x))
    plain = Network(2, 2, 5)
    plain.fit_scale(x)
    assert "white" not in plain.state_dict()


def test_amplitudes_and_a_distilled_sampler_load_into_a_fresh_network():
    network = make_network()
    network.amplitudes = torch.rand(SOURCES, 3, 4, 3)
    network.distilled = DistilledStep(SOURCES, DIM, DIM, width=4)
    network.distilled.reset_parameters(make_generator())
    fresh = make_network()
    fresh.load_state_dict(network.state_dict())
    assert torch.equal(fresh.amplitudes, network.amplitudes)
    assert torch.equal(fresh.distilled.inner, network.distilled.inner)


def test_lda_has_the_most_likely_scale():
    network, x, y = whitened_network("pooled")
    network.fit_lda(network.features(x), y)
    weight, bias = network.lda()
    logits = network.features(x) @ weight.T + bias
    assert (logits.argmax(1) == y).float().mean() > 0.95
    losses = [torch.nn.functional.cross_entropy(logits * k, y) for k in (0.5, 1.0, 2.0)]
    assert losses[1] < min(losses[0], losses[2])


@pytest.mark.parametrize(
    ("share", "weight"), [(0.3, 0), (0.5, 0), (0.75, 5), (1.0, 2 * CLASSIFIER_WEIGHT), (float("nan"), 0)]
)
def test_lda_has_weight_where_its_share_of_the_mixture_exceeds_one_half(share, weight, monkeypatch):
    monkeypatch.setattr(module, "mixture_weight", lambda *predictions: share)
    network = Network(2, 2, 5, "pooled")
    network.white = network.unwhite = torch.eye(5)
    network.fit_lda(torch.randn(8, 5), torch.arange(8) % 2)
    assert network.lda_weight == weight  # beside 2 * CLASSIFIER_WEIGHT of the learned classifiers


def test_without_whitening_lda_has_no_weight():
    network = Network(2, 2, 5, "pooled")
    network.fit_lda(torch.randn(8, 5), torch.arange(8) % 2)
    assert network.lda_weight == 0
    assert network.lda_scale == 0
