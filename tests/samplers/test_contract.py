"""One contract for every registered sampler: a new one joins by joining the registry."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sourceward.functional import EnergyWeights, row_keys
from sourceward.samplers import SAMPLERS, Chain, StepSettings, keyed_noise, run
from tests.helpers import make_generator, quadratic, random_weights, target_of

SOURCES, ROWS, DIM, STEPS = 3, 24, 6, 7
WEIGHTS = random_weights(SOURCES, DIM, hidden=8, narrow=5)
MAY_RAISE_THE_ENERGY = {"langevin_unchecked", "mala"}

every = pytest.mark.parametrize("sampler", list(SAMPLERS))
descending = pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - MAY_RAISE_THE_ENERGY))


def make_settings(sampler: str) -> StepSettings:
    # Steps large enough that some are refused; MALA takes its noise from the step size.
    return StepSettings(step_size=0.3 if sampler == "mala" else 4.0, noise_std=0.1, clip=0.05)


def make_rows(rows: int = ROWS, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, DIM, generator=make_generator(seed), dtype=dtype)


def run_chain(
    sampler: str,
    rows: Tensor,
    weights: EnergyWeights = WEIGHTS,
    num_steps: int = STEPS,
    **options,
) -> Chain:
    """Chains from rows (batch, dim) as at test time: every source starts at x, z and noise follow the row."""
    start = rows.unsqueeze(0).expand(SOURCES, -1, -1)
    noise = keyed_noise(row_keys(rows.numpy()), start)
    target = target_of(weights, 0.5 * start)
    return run(sampler, start, target, make_settings(sampler), num_steps, noise, **options)


@every
def test_shapes_are_kept(sampler):
    chain = run_chain(sampler, make_rows())
    assert chain.feature.shape == (SOURCES, ROWS, DIM)
    assert chain.feature.dtype == torch.float64
    for value in (chain.energy_before, chain.energy_after, chain.steps):
        assert value.shape == (SOURCES, ROWS)
    assert torch.isfinite(chain.feature).all()
    assert ((chain.steps >= 0) & (chain.steps <= STEPS)).all()


@every
def test_it_moves_and_reports_the_energy_of_where_it_ends(sampler):
    rows = make_rows()
    chain = run_chain(sampler, rows)
    assert (chain.feature != rows).any(-1).double().mean() > 0.5
    target = target_of(WEIGHTS, 0.5 * rows.expand(SOURCES, -1, -1))
    torch.testing.assert_close(chain.energy_before, target.energy(rows.expand(SOURCES, -1, -1)))
    torch.testing.assert_close(chain.energy_after, target.energy(chain.feature))


@every
def test_zero_steps_return_the_same_bits(sampler):
    rows = make_rows(dtype=torch.float32)
    weights = random_weights(SOURCES, DIM, dtype=torch.float32)
    chain = run_chain(sampler, rows, weights, num_steps=0)
    assert chain.feature.numpy().tobytes() == rows.expand(SOURCES, -1, -1).numpy().tobytes()
    assert torch.equal(chain.energy_after, chain.energy_before)
    assert (chain.steps == 0).all()


@descending
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_energy_never_rises_along_an_accepted_chain(sampler, dtype):
    rows = make_rows(200, dtype=dtype)
    weights = random_weights(SOURCES, DIM, dtype=dtype)
    chain = run_chain(sampler, rows, weights, num_steps=25, record=True)
    assert (chain.energies[1:] <= chain.energies[:-1]).all()
    # The recorded energies are those of the recorded points.
    target = target_of(weights, 0.5 * rows.expand(SOURCES, -1, -1))
    for point, value in zip(chain.trajectory, chain.energies):
        torch.testing.assert_close(target.energy(point), value)
    # Some steps were refused and some taken, so both branches are tested.
    assert 0 < chain.steps.double().mean() < 25


@every
def test_the_same_keys_give_the_same_bits(sampler):
    rows = make_rows()
    assert torch.equal(run_chain(sampler, rows).feature, run_chain(sampler, rows).feature)


@every
def test_other_keys_give_other_samples(sampler):
    rows = make_rows()
    start = rows.expand(SOURCES, -1, -1)
    target, settings = target_of(WEIGHTS, start), make_settings(sampler)
    ends = [
        run(sampler, start, target, settings, STEPS, keyed_noise(row_keys(rows.numpy(), seed), start)).feature
        for seed in (0, 1)
    ]
    assert not torch.equal(*ends)


def assert_same_chain(found: Chain, expected: Chain, pick) -> None:
    """Row by row the same; BLAS picks kernels by batch size, so the last bits may differ."""
    torch.testing.assert_close(found.feature, expected.feature[:, pick], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.energy_after, expected.energy_after[:, pick], rtol=1e-9, atol=1e-9)
    assert torch.equal(found.steps, expected.steps[:, pick])


@every
@given(st.integers(0, 10_000), st.permutations(range(ROWS)))
def test_order_of_rows_does_not_matter(sampler, seed, order):
    rows = make_rows(seed=seed)
    assert_same_chain(run_chain(sampler, rows[order]), run_chain(sampler, rows), order)


@every
@given(st.integers(0, 10_000), st.lists(st.integers(1, ROWS - 1), max_size=4, unique=True).map(sorted))
def test_splitting_the_batch_does_not_matter(sampler, seed, cuts):
    rows = make_rows(seed=seed)
    whole = run_chain(sampler, rows)
    for begin, end in itertools.pairwise([0, *cuts, ROWS]):
        assert_same_chain(run_chain(sampler, rows[begin:end]), whole, slice(begin, end))


@every
def test_neighbours_do_not_matter_in_single_precision(sampler):
    rows = make_rows(64, seed=1, dtype=torch.float32)
    weights = random_weights(SOURCES, DIM, dtype=torch.float32)
    whole, half = run_chain(sampler, rows, weights), run_chain(sampler, rows[:32], weights)
    torch.testing.assert_close(half.feature, whole.feature[:, :32], rtol=1e-5, atol=1e-5)


@every
def test_recording_gives_every_point_from_start_to_end(sampler):
    rows = make_rows()
    chain = run_chain(sampler, rows, record=True)
    assert chain.trajectory.shape == (STEPS + 1, SOURCES, ROWS, DIM)
    assert chain.energies.shape == (STEPS + 1, SOURCES, ROWS)
    assert chain.origins.shape == (STEPS, SOURCES, ROWS, DIM)
    assert torch.equal(chain.trajectory[0], rows.expand(SOURCES, -1, -1))
    assert torch.equal(chain.trajectory[-1], chain.feature)
    assert torch.equal(chain.energies[0], chain.energy_before)
    assert torch.equal(chain.energies[-1], chain.energy_after)
    # Recording does not change the chain.
    assert torch.equal(chain.feature, run_chain(sampler, rows).feature)


@every
def test_starts_and_weights_are_left_alone(sampler):
    rows = make_rows()
    copies = rows.clone(), [w.clone() for w in WEIGHTS]
    run_chain(sampler, rows)
    assert torch.equal(rows, copies[0])
    assert all(torch.equal(a, b) for a, b in zip(WEIGHTS, copies[1]))


@every
def test_a_source_does_not_depend_on_the_others(sampler):
    rows = make_rows()
    every_source = run_chain(sampler, rows)
    changed = WEIGHTS._replace(
        feature=WEIGHTS.feature * torch.tensor([1.0, 1.0, 2.0]).double()[:, None, None]
    )
    other = run_chain(sampler, rows, changed)
    assert torch.equal(other.feature[:2], every_source.feature[:2])
    assert not torch.equal(other.feature[2], every_source.feature[2])


@every
def test_no_step_leads_to_an_energy_that_is_not_finite(sampler):
    """A sample whose proposal has no finite energy keeps its place."""
    bowl = quadratic(torch.ones(DIM, dtype=torch.float64))

    def wall(x: Tensor) -> Tensor:
        return torch.where(x.norm(dim=-1) > 3, torch.nan, bowl.energy(x))

    rows = make_rows().expand(1, -1, -1)
    rows = rows / rows.norm(dim=-1, keepdim=True) * 2.9
    target = bowl._replace(energy=wall, energy_and_grad=lambda x: (wall(x), bowl.energy_and_grad(x)[1]))
    settings = StepSettings(step_size=0.5, noise_std=1.0, clip=1e6)
    chain = run(sampler, rows, target, settings, 10, keyed_noise(row_keys(rows[0].numpy()), rows))
    assert torch.isfinite(chain.feature).all()
    assert torch.isfinite(chain.energy_after).all()
