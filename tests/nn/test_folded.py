"""A folded network: cached while the network does not change, computed again when it does."""

import copy

import pytest
import torch

from sourceward.nn import HEADS, Network, folded
from sourceward.nn.network import CLASSIFIER_WEIGHT
from tests.helpers import make_generator


def make_network(head: str = "pooled") -> Network:
    network = Network(2, 3, 8, head)
    network.reset_parameters(make_generator())
    network.centers.copy_(torch.randn(network.centers.shape, generator=make_generator(1)))
    return network


def test_it_is_cached_while_nothing_changes():
    network = make_network()
    assert folded(network) is folded(network)


@pytest.mark.parametrize("part", ["energy", "latent", "head", "centers"])
def test_it_follows_every_change(part):
    network = make_network("concat")
    before = folded(network)
    module = getattr(network, part)
    with torch.no_grad():
        (module if part == "centers" else next(module.parameters())).mul_(1.5)
    assert folded(network) is not before
    network.load_state_dict(make_network("concat").state_dict())
    assert folded(network) is not before
    torch.testing.assert_close(folded(network).energy.up, before.energy.up)


def test_a_copy_of_the_network_starts_without_a_cache():
    network = make_network()
    before = folded(network)
    rebuild, arguments = network.__dict__["_folded"].__reduce__()  # what a pickle would hold of it
    sent = copy.deepcopy(network)
    sent.__dict__["_folded"] = rebuild(*arguments)
    for twin in (copy.deepcopy(network), sent):
        assert twin.__dict__["_folded"] is None
        assert folded(twin) is not before
        assert torch.equal(folded(twin).energy.up, before.energy.up)


@pytest.mark.parametrize("head", list(HEADS))
def test_its_parts_compute_what_the_network_computes(head):
    network = make_network(head).eval()
    x = torch.randn(2, 16, 8, generator=make_generator(3))
    with torch.no_grad():
        fold, prior, posterior = folded(network), network.prior(x), network.posterior(network.centers)
        z = None if prior is None else prior.mean
        if fold.latent is not None:
            torch.testing.assert_close(fold.latent(x), prior)
            torch.testing.assert_close(fold.class_latent, posterior.mean)
        expected = network.head(x, z, None if posterior is None else posterior.mean)
        torch.testing.assert_close(fold.head(x, z, fold.class_latent), expected)


def test_a_pooled_head_mixes_its_classifiers():
    network = Network(2, 3, 6, "pooled")
    network.reset_parameters(make_generator())
    network.centers.normal_(generator=make_generator(1))
    fold, x = folded(network.requires_grad_(False).eval()), torch.randn(2, 8, 6, generator=make_generator(2))
    each = [fold.head(x, None, latent).softmax(-1) for latent in (fold.class_latent, fold.pooled_latent)]
    torch.testing.assert_close(fold.classify(x, None), sum(each) / 2)
    assert not torch.allclose(*each)
    network.white = network.unwhite = torch.eye(6)
    network.lda_scale.fill_(0.7)
    network.lda_weight.fill_(2 * CLASSIFIER_WEIGHT)
    fold, center = folded(network), network.centers.mean(0)
    nearest = (-0.35 * torch.cdist(x, center.expand(2, -1, -1)).square()).softmax(-1)
    torch.testing.assert_close(fold.classify(x, None), (sum(each) / 2 + nearest) / 2)
    torch.testing.assert_close(fold.prior_mean(x[0]), network.prior(x[0]).mean)
