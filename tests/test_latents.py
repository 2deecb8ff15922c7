"""z of a test sample: from p(z|x), or from the classes that its unmoved self is voted into."""

import copy

import pytest
import torch

from sourceward.algorithm import adapt
from sourceward.functional import oracle_latent, row_keys
from sourceward.latents import class_latent
from sourceward.nn import Network, folded
from sourceward.settings import LATENTS, AdaptSettings
from tests.helpers import make_generator

SOURCES, CLASSES, DIM, ROWS = 2, 3, 6, 40


@pytest.fixture(scope="module")
def network() -> Network:
    network = Network(SOURCES, CLASSES, DIM, "pooled")
    network.reset_parameters(make_generator())
    network.centers.copy_(3 * torch.randn(SOURCES, CLASSES, DIM, generator=make_generator(1)))
    return network.eval().requires_grad_(False)


def answer(network: Network, **options):
    feature = torch.randn(ROWS, DIM, generator=make_generator(2))
    return adapt(network, feature, row_keys(feature), AdaptSettings(num_steps=5, **options))


def test_classes_are_weighed_by_the_vote(network):
    fold = folded(network)
    probability = torch.rand(SOURCES, ROWS, CLASSES, generator=make_generator(3)).softmax(-1)
    same = torch.zeros(SOURCES, ROWS)  # no source is surprised: the vote is the mean
    found = class_latent(fold, probability, same, "classes")
    expected = torch.einsum("bc,scd->sbd", probability.mean(0), network.posterior(network.centers).mean)
    torch.testing.assert_close(found, expected)


def test_a_certain_vote_for_the_true_class_is_the_oracle(network):
    label = torch.arange(ROWS) % CLASSES
    certain = torch.nn.functional.one_hot(label, CLASSES).float().expand(SOURCES, -1, -1)
    oracle = oracle_latent(network.posterior(network.centers), label).mean
    for kind in ("classes", "class"):
        found = class_latent(folded(network), certain, torch.zeros(SOURCES, ROWS), kind)
        torch.testing.assert_close(found, oracle)


def test_the_walk_follows_the_latent(network):
    ends = [answer(network, latent=kind).chain.feature for kind in LATENTS]
    assert len({end.numpy().tobytes() for end in ends}) == len(LATENTS)


def test_votes_by_energy_do_not_depend_on_it(network):
    """Energies are calibrated with p(z|x), and weigh the votes with it."""
    network = copy.deepcopy(network)
    network.own_energy.copy_(torch.linspace(0.4, 0.6, 21).expand(SOURCES, -1))
    votes = []
    for kind in LATENTS:
        given = answer(network, latent=kind, aggregation="energy")
        first, second = given.per_source[:, :, 0]
        votes.append((given.probability[:, 0] - second) / (first - second))  # the weight of the first source
    for vote in votes[1:]:
        torch.testing.assert_close(vote, votes[0], rtol=1e-2, atol=1e-2)


def test_no_adaptation_has_the_prior(network):
    settings = AdaptSettings(num_steps=5, latent="class", top=1, aggregation="learned", trust=(0.0,) * 5)
    off = settings.off()
    assert (off.latent, off.top, off.aggregation, off.num_steps) == ("prior", None, "mean", 0)
