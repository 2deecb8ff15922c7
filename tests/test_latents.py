"""z of a test sample: from p(z|x), or of the class that its unmoved self is voted into."""

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
    return adapt(network, feature, row_keys(feature), AdaptSettings(**{"num_steps": 5, **options}))


def test_it_is_the_posterior_of_the_class_that_the_vote_names(network):
    rows = torch.randn(ROWS, DIM, generator=make_generator(2))
    start, fold = rows.expand(SOURCES, -1, -1), folded(network)
    prior = fold.latent(rows).mean.expand_as(start)
    found, before = class_latent(fold, start, prior)
    still = answer(network, num_steps=0, aggregation="energy")
    torch.testing.assert_close(before, still.chain.energy_before)
    voted = still.probability.argmax(-1)
    assert len(voted.unique()) > 1
    torch.testing.assert_close(found, oracle_latent(network.posterior(network.centers), voted).mean)


def test_only_the_sources_that_vote_name_the_class(network):
    """The answer of one source alone is that of a network that has no other."""
    alone = Network(1, CLASSES, DIM, "prototype").eval()
    both = Network(SOURCES, CLASSES, DIM, "prototype").eval()
    both.reset_parameters(make_generator())
    both.centers.copy_(network.centers)
    state = both.state_dict()
    shared = {name: value for name, value in state.items() if name.startswith(("latent", "head", "sh", "sc"))}
    own = {name: value[1:] for name, value in state.items() if name.startswith(("energy", "centers", "own"))}
    alone.load_state_dict(shared | own, strict=False)
    feature = torch.randn(ROWS, DIM, generator=make_generator(2))
    settings = AdaptSettings(num_steps=5, latent="class")
    ours = adapt(both, feature, row_keys(feature), settings, sources=(1,)).probability
    theirs = adapt(alone, feature, row_keys(feature), settings).probability
    torch.testing.assert_close(ours, theirs)
    elsewhere = adapt(both, feature, row_keys(feature), settings).chain.feature[1]
    assert not torch.equal(elsewhere, adapt(alone, feature, row_keys(feature), settings).chain.feature[0])


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
    settings = AdaptSettings(
        num_steps=5, latent="class", top=1, aggregation="learned", source_weights=(0.0,) * 5
    )
    off = settings.off()
    assert (off.latent, off.top, off.aggregation, off.num_steps) == ("prior", None, "mean", 0)
