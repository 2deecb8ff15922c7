"""Algorithm 1: which parameters each line trains, its variants, and inference at test time."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sourceward.algorithm import Batch, adapt, objective
from sourceward.functional import AGGREGATIONS, Coefficients, Gaussian, guided_step, row_keys
from sourceward.functional.aggregation import BY_ENERGY
from sourceward.nn import HEADS, Network, ReplayBuffer, folded
from sourceward.settings import AdaptSettings, TrainSettings
from tests.helpers import make_generator

SOURCES, ROWS, DIM, CLASSES = 3, 12, 5, 3
NOTHING = Coefficients(0, 0, 0, 0, 0, 0)
RELEASED = Coefficients()
GUIDE = replace(NOTHING, guide_label=1.0)
STEPS = TrainSettings(num_steps=3, chains=None, pooled_weight=0.0, feature_noise=0.0, supervised_steps=None)


def make_network(head: str = "prototype", sources: int = SOURCES, backbone: Any = None) -> Network:
    network = Network(sources, CLASSES, DIM, head, backbone)
    network.reset_parameters(make_generator())
    network.centers.copy_(torch.randn(network.centers.shape, generator=make_generator(1)))
    return network


def make_batch(sources: int = SOURCES) -> Batch:
    feature = torch.randn(sources, ROWS, DIM, generator=make_generator(2))
    return Batch(feature, torch.arange(ROWS).remainder(CLASSES).expand(sources, -1))


def make_replay(sources: int = SOURCES) -> ReplayBuffer:
    return ReplayBuffer(sources, CLASSES, DIM, per_class=4)


def losses(
    network: Network,
    settings: TrainSettings,
    batch: Batch | None = None,
    seed: int = 3,
    coefficients: Coefficients = RELEASED,
):
    batch = batch or make_batch(network.sources)
    replay = make_replay(network.sources)
    return objective(network, replay, batch, settings, coefficients, make_generator(seed))


def fresh(head: str = "prototype", seed: int = 3, coefficients: Coefficients = RELEASED, **settings):
    """The loss of a new network: an iteration refines the singular vectors, so a used one differs."""
    return losses(make_network(head), replace(STEPS, **settings), seed=seed, coefficients=coefficients)


def reached(network: Network, coefficients: Coefficients) -> set[str]:
    """Which parts have a gradient: psi is `backbone`, phi `latent` and `head`, theta `energy`."""
    batch = make_batch()
    feature = network.features(batch.feature.flatten(0, 1)).unflatten(0, (SOURCES, ROWS))
    loss = losses(network, STEPS, batch._replace(feature=feature), coefficients=coefficients)
    network.zero_grad()
    loss.total.backward()
    grads = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return {name.split(".")[0] for name, grad in grads.items() if grad.abs().max() > 0}


LINES = {
    "classify": {"backbone", "latent", "head"},
    "kl": {"backbone", "latent"},
    "contrast": {"energy"},
    "guide_energy": {"energy"},
    "guide_label": {"energy"},
    "guide_kl": {"energy"},
}


@pytest.mark.parametrize("head", list(HEADS))
@pytest.mark.parametrize("line", LINES)
def test_each_line_trains_its_own_parameters(line, head):
    network = make_network(head, backbone=nn.Linear(DIM, DIM))
    have = {name.split(".")[0] for name, _ in network.named_parameters()}
    expected = LINES[line] & have
    if head == "linear" and "kl" in line:
        expected = set()  # eq. 7 has no KL
    assert reached(network, replace(NOTHING, **{line: 1.0})) == expected


def test_a_pooled_head_trains_with_the_classifier():
    network = make_network("pooled", backbone=nn.Linear(DIM, DIM))
    loss = losses(network, replace(STEPS, pooled_weight=1.0), coefficients=NOTHING)
    loss.total.backward()
    assert loss.total > 0
    assert all(p.grad is None or not p.grad.any() for p in network.energy.parameters())
    assert all(p.grad is not None and p.grad.any() for p in network.latent.hidden.parameters())


def test_features_are_constants_for_the_energies():
    batch = make_batch()
    feature = batch.feature.clone().requires_grad_()
    coefficients = Coefficients(classify=0, kl=0)
    loss = losses(make_network(), STEPS, batch._replace(feature=feature), coefficients=coefficients)
    loss.total.backward()
    assert feature.grad is None or not feature.grad.any()


def test_total_is_the_weighted_sum_of_its_lines():
    coefficients = Coefficients(classify=2.0, kl=0.3, contrast=0.7)
    loss = fresh(coefficients=coefficients)
    expected = 2.0 * loss.classify + 0.3 * loss.kl + 0.7 * loss.contrast + loss.guide
    torch.testing.assert_close(loss.total, expected)


def test_eq_10_as_printed_differs_by_its_two_kl_terms():
    ours, paper = (fresh(coefficients=c) for c in (Coefficients(), Coefficients.paper()))
    for name in ("classify", "kl", "contrast"):
        assert torch.equal(getattr(ours, name), getattr(paper, name))
    assert paper.guide < ours.guide, "the printed sign of the guide's KL is minus, and a KL is positive"
    torch.testing.assert_close(paper.total - ours.total, 0.9 * ours.kl + paper.guide - ours.guide)


def test_guide_last_supervises_the_last_step_only(monkeypatch):
    origins = []

    def watch(weights, feature, *rest):
        origins.append(feature)
        return guided_step(weights, feature, *rest)

    monkeypatch.setattr("sourceward.algorithm.guided_step", watch)
    every, last = (fresh(supervise=g) for g in ("all", "last"))
    assert torch.equal(every.contrast, last.contrast)
    assert not torch.equal(every.guide, last.guide)
    assert origins[0].shape == (SOURCES, 3 * ROWS, DIM)
    assert torch.equal(origins[1], origins[0][:, -ROWS:])
    assert torch.equal(*(fresh(supervise=g, num_steps=1).total for g in ("all", "last")))


def test_the_guide_may_train_the_prototypes():
    """As in the released code. Values and the gradient of the energies are the same."""
    start, found = make_network(backbone=nn.Linear(DIM, DIM)), []
    for trains in (False, True):
        network, batch = deepcopy(start), make_batch()
        feature = network.features(batch.feature.flatten(0, 1)).unflatten(0, (SOURCES, ROWS))
        settings = replace(STEPS, guide_prototypes=trains)
        loss = losses(network, settings, batch._replace(feature=feature), coefficients=GUIDE)
        loss.total.backward()
        named = [(name, p.grad) for name, p in network.named_parameters() if p.grad is not None]
        parts = {name.split(".")[0] for name, grad in named if grad.any()}
        found.append((loss.total, network.energy.matrices[0].grad, parts))
    (value, gradient, parts), (same, alike, more) = found
    torch.testing.assert_close(value, same)
    torch.testing.assert_close(gradient, alike)
    assert (parts, more) == ({"energy"}, {"energy", "latent", "backbone"})


def test_a_posterior_chain_doubles_the_chains():
    replay, twice = make_replay(), make_replay()
    plain = objective(make_network(), replay, make_batch(), STEPS, Coefficients(), make_generator())
    doubled = replace(STEPS, chain_latent="both")
    both = objective(make_network(), twice, make_batch(), doubled, Coefficients(), make_generator())
    assert torch.equal(plain.classify, both.classify)
    assert not torch.equal(plain.contrast, both.contrast)
    assert torch.equal(twice.pushed, 2 * replay.pushed)
    # Eq. 7 has no posterior to start a second chain from.
    assert torch.equal(*(fresh("linear", chain_latent=z).total for z in ("prior", "both")))


def test_chains_by_the_prior_and_by_the_posterior_are_the_halves_of_both():
    loss = {z: fresh(chain_latent=z) for z in ("prior", "posterior", "both")}
    assert torch.equal(loss["prior"].classify, loss["posterior"].classify)
    assert not torch.equal(loss["prior"].contrast, loss["posterior"].contrast)
    assert torch.equal(loss["prior"].kl, loss["both"].kl)


def test_several_draws_average_the_classification_loss():
    """The spread of the loss over seeds falls with the number of draws."""
    one, four = fresh(num_draws=1), fresh(num_draws=4)
    assert not torch.equal(one.classify, four.classify)
    network = make_network()
    with torch.no_grad():
        network.latent.std.weight.zero_(), network.latent.std.bias.fill_(-1e4)  # std is at its least, 0.1
    spread = [
        torch.stack([
            objective(network, make_replay(), make_batch(), replace(STEPS, num_draws=n), Coefficients(),
                      torch.Generator().manual_seed(seed)).classify
            for seed in range(30)
        ]).std()
        for n in (1, 16)
    ]  # fmt: skip
    assert spread[1] < 0.5 * spread[0]  # 1/4 in theory


def starts(batch: Batch, settings: TrainSettings, monkeypatch) -> tuple[Tensor, Tensor]:
    """Where the chains of one iteration start: with steps of size 0, what goes to the replay."""
    seen = []
    monkeypatch.setattr(ReplayBuffer, "push", lambda self, feature, label: seen.append((feature, label)))
    fixed = replace(settings, step_size=0.0, replay_share=0.0)
    losses(make_network(sources=len(batch.feature)), fixed, batch)
    return seen[0]


def tagged(sources: int) -> Batch:
    """Features that say where they come from: (source, row, 0, 0, 0)."""
    feature = torch.zeros(sources, ROWS, DIM)
    feature[..., 0] = torch.arange(1.0, sources + 1).unsqueeze(1)
    feature[..., 1] = torch.arange(ROWS)
    return Batch(feature, torch.arange(ROWS).remainder(CLASSES).expand(sources, -1))


@pytest.mark.parametrize("sources", [2, 5])
def test_negatives_are_labelled_samples_of_other_sources(sources, monkeypatch):
    feature, label = starts(tagged(sources), replace(STEPS, chains=200), monkeypatch)
    feature = feature.round()  # without the noise of the chain
    assert feature.shape == (sources, 200, DIM)
    assert torch.equal(label, feature[..., 1].long().remainder(CLASSES))
    for source in range(sources):
        assert set(feature[source, :, 0].tolist()) == set(range(1, sources + 1)) - {source + 1}


def test_negatives_of_a_single_source_are_its_own_under_noise(monkeypatch):
    batch = tagged(1)
    feature, label = starts(batch, replace(STEPS, shift_noise=0.5), monkeypatch)
    assert torch.equal(label, batch.label)
    noise = feature - batch.feature
    assert noise.abs().min() > 0
    assert noise.std().item() == pytest.approx(0.5, rel=5 / (2 * noise.numel()) ** 0.5)


@pytest.mark.parametrize("sources", [1, 3])
def test_shifted_samples_join_the_negatives_of_every_source(sources, monkeypatch):
    batch = tagged(sources)._replace(shifted=torch.full((4, DIM), 9.0), shifted_label=torch.ones(4).long())
    feature, label = starts(batch, replace(STEPS, chains=200), monkeypatch)
    feature = feature.round()
    for source in range(sources):
        origins = set(feature[source, :, 0].tolist())
        assert origins == {9.0} | set(range(1, sources + 1)) - {source + 1}
    assert (label[feature[..., 0] == 9] == 1).all()


def test_feature_noise_reaches_training():
    assert not torch.equal(fresh().classify, fresh(feature_noise=0.5).classify)


def test_an_iteration_is_reproducible():
    assert torch.equal(fresh().total, fresh().total)
    assert not torch.equal(fresh().total, fresh(seed=4).total)


# Test time.


def answer(network: Network, settings: AdaptSettings, feature: Tensor | None = None, **options):
    feature = torch.randn(8, DIM, generator=make_generator(5)) if feature is None else feature
    return adapt(network.eval(), feature, row_keys(feature.numpy()), settings, **options)


def test_the_prediction_aggregates_the_sources():
    network = make_network()
    for name in AGGREGATIONS:
        given = answer(network, AdaptSettings(num_steps=2, aggregation=name, source_weights=BY_ENERGY))
        assert given.per_source.shape == (SOURCES, 8, CLASSES)
        torch.testing.assert_close(given.probability.sum(-1), torch.ones(8))
    mean = answer(network, AdaptSettings(num_steps=2, aggregation="mean"))
    torch.testing.assert_close(mean.probability, mean.per_source.mean(0))


def test_more_draws_differ_less():
    """The spread of a mean of 64 draws is about an eighth of a single draw's."""
    network = make_network("concat")
    rows = torch.randn(1, DIM, generator=make_generator(5)).expand(40, -1)

    def spread(draws: int) -> float:
        settings = AdaptSettings(num_steps=0, num_draws=draws)
        return adapt(network, rows, torch.arange(40), settings).probability.std(0).mean().item()

    assert 5 < spread(1) / spread(64) < 12


def test_a_latent_can_be_replaced_for_an_analysis():
    network = make_network("concat")
    settings = AdaptSettings(num_steps=2)
    given = answer(network, settings)
    feature = torch.randn(8, DIM, generator=make_generator(5))
    prior = folded(network).latent(feature.expand(SOURCES, -1, -1))  # to the bit as in an answer
    same = answer(network, settings, latent=prior)
    other = answer(network, settings, latent=Gaussian(prior.mean + 1, prior.std))
    assert torch.equal(given.probability, same.probability)
    assert not torch.equal(given.probability, other.probability)
