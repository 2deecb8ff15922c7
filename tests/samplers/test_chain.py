"""The fused chain: the same samples as `run("langevin", ...)`, by fewer products."""

import pytest
import torch

from sourceward.functional import ChainWeights, row_keys, row_multiple
from sourceward.samplers import StepSettings, generator_noise, keyed_noise, run, run_chain
from sourceward.samplers import chain as fused
from tests.helpers import make_generator, random_weights, target_of

SOURCES, ROWS, DIM, STEPS = 3, 10, 6, 7
WEIGHTS = random_weights(SOURCES, DIM, hidden=8)
CHAIN = ChainWeights.of(WEIGHTS)
FEATURE = torch.randn(ROWS, DIM, generator=make_generator(1), dtype=torch.float64)
LATENT = torch.randn(SOURCES, ROWS, DIM, generator=make_generator(2), dtype=torch.float64)
START = FEATURE.expand(SOURCES, -1, -1)
KEYS = row_keys(FEATURE)


def settings(noise_std: float = 0.1) -> StepSettings:
    return StepSettings(step_size=4.0, noise_std=noise_std, clip=0.05)


def fast(step: StepSettings, num_steps: int = STEPS, sampler: str = "langevin", **options):
    return run_chain(sampler, START, CHAIN, CHAIN.bias(LATENT), step, num_steps, KEYS, **options)


def slow(step: StepSettings, sampler: str = "langevin", **options):
    return run(sampler, START, target_of(WEIGHTS, LATENT), step, STEPS, keyed_noise(KEYS, START), **options)


@pytest.mark.parametrize("sampler", ["langevin", "langevin_unchecked"])
@pytest.mark.parametrize("noise_std", [0.0, 0.1])
def test_it_equals_the_reference_loop(sampler, noise_std):
    ours, theirs = (chain(settings(noise_std), sampler=sampler, record=True) for chain in (fast, slow))
    for name in vars(theirs):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-10, atol=1e-10)
    if sampler == "langevin_unchecked":
        assert (ours.steps == STEPS).all()
    elif noise_std:
        assert 0 < ours.steps.double().mean() < STEPS


def test_origins_alone_are_the_same_origins():
    alone, everything = fast(settings(), record="origins"), slow(settings(), record=True)
    torch.testing.assert_close(alone.origins, everything.origins, rtol=1e-10, atol=1e-10)
    assert alone.trajectory is None
    assert alone.energies is None


def test_the_number_of_steps_whose_noise_is_drawn_together_does_not_matter(monkeypatch):
    together = fast(settings())
    monkeypatch.setattr(fused, "NOISE_ROWS", 2 * ROWS)
    torch.testing.assert_close(fast(settings()).feature, together.feature, rtol=1e-12, atol=1e-12)


def test_no_tensor_grows_with_the_number_of_steps(monkeypatch):
    drawn = []
    original = fused.many_normals

    def watch(keys, streams, *rest):
        drawn.append(len(streams))
        return original(keys, streams, *rest)

    monkeypatch.setattr(fused, "many_normals", watch)
    monkeypatch.setattr(fused, "NOISE_ROWS", 3 * ROWS)
    fast(settings(), num_steps=50)
    assert sum(drawn) == 50
    assert max(drawn) == 3


@pytest.mark.parametrize("dim", [50, 64])
def test_a_chain_has_the_same_bits_among_any_number_of_rows(dim):
    generator, rows = make_generator(3), row_multiple(dim)
    energy = random_weights(SOURCES, dim, hidden=dim, narrow=128, latent=False, dtype=torch.float32)
    chain, feature = ChainWeights.of(energy), torch.randn(8 * rows, dim, generator=generator)
    whole, *parts = (
        run_chain("langevin", part.expand(SOURCES, -1, -1), chain, chain.bias(None), step, 9, row_keys(part))
        for step in [StepSettings(step_size=5.0, noise_std=0.02)]
        for part in (feature, *feature.split(rows))
    )
    assert torch.equal(torch.cat([part.feature for part in parts], 1), whole.feature)
    assert torch.equal(torch.cat([part.steps for part in parts], 1), whole.steps)
    assert 0 < int(whole.steps.min()) < int(whole.steps.max())


@pytest.mark.parametrize("sampler", ["langevin", "langevin_unchecked", "mala", "nesterov"])
@pytest.mark.parametrize("own", [1, 3])
def test_rows_without_a_key_are_padding(sampler, own):
    dim, rows, sources = 64, 2 * row_multiple(64), 2
    weights = ChainWeights.of(random_weights(sources, dim, dim, dtype=torch.float32))
    feature = torch.randn(rows, dim, generator=make_generator())
    start, keys = feature.expand(sources, -1, -1), row_keys(feature)
    bias = weights.bias(start)
    every, few = (
        run_chain(sampler, start, weights, bias, StepSettings(), 3, some).feature
        for some in (keys, keys[:own])
    )
    assert torch.equal(few[:, :own], every[:, :own])
    assert not torch.equal(few[:, own:], every[:, own:])


def test_the_result_can_be_used_in_autograd():
    weight = torch.ones(DIM, dtype=torch.float64, requires_grad=True)
    (fast(settings()).feature * weight).sum().backward()
    assert weight.grad is not None


def test_zero_steps_return_the_same_bits():
    chain = fast(settings(), num_steps=0)
    assert torch.equal(chain.feature, START)
    assert torch.equal(chain.energy_before, chain.energy_after)


def test_a_generator_gives_every_source_its_own_noise():
    step, bias = settings(), CHAIN.bias(LATENT)
    ours = run_chain("langevin", START, CHAIN, bias, step, 1, make_generator(5))
    theirs = run(
        "langevin", START, target_of(WEIGHTS, LATENT), step, 1, generator_noise(make_generator(5), START)
    )
    torch.testing.assert_close(ours.feature, theirs.feature, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sampler", ["mala", "nesterov"])
def test_other_samplers_run_on_the_same_energy(sampler):
    step = StepSettings(step_size=0.3, clip=0.05)
    ours, theirs = (chain(step, sampler=sampler) for chain in (fast, slow))
    torch.testing.assert_close(ours.feature, theirs.feature, rtol=1e-10, atol=1e-10)
