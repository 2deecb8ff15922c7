"""The reference loop: what it records and where its noise comes from."""

import pytest
import torch

from sourceward._util.errors import InputError
from sourceward.functional import keyed_normal, keyed_uniform
from sourceward.samplers import Noise, StepSettings, generator_noise, keyed_noise, run
from tests.helpers import make_generator, quadratic, random_weights, target_of

QUADRATIC = quadratic(torch.ones(2, dtype=torch.float64))
QUIET = StepSettings(step_size=0.1, noise_std=0.0, clip=1e6)


def no_noise(like: torch.Tensor):
    return lambda k: Noise(torch.zeros_like(like), torch.ones(like.shape[:-1], dtype=like.dtype))


def test_each_step_gets_its_own_number():
    start = torch.ones(1, 1, 2, dtype=torch.float64)
    steps = []

    def noise(k: int) -> Noise:
        steps.append(k)
        return no_noise(start)(k)

    run("langevin", start, QUADRATIC, QUIET, 4, noise)
    assert steps == [0, 1, 2, 3]


def test_gradient_descent_on_a_quadratic_by_hand():
    # x <- x - 0.1 x, four times.
    start = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64)
    chain = run("langevin", start, QUADRATIC, QUIET, 4, no_noise(start), record=True)
    torch.testing.assert_close(chain.feature, start * 0.9**4)
    torch.testing.assert_close(chain.energies.flatten(), 2.5 * 0.81 ** torch.arange(5, dtype=torch.float64))
    assert chain.energy_before.item() == 2.5
    assert chain.energy_after.item() == pytest.approx(2.5 * 0.9**8)
    assert chain.steps.item() == 4


def test_nothing_is_recorded_by_default():
    start = torch.ones(1, 1, 2, dtype=torch.float64)
    chain = run("langevin", start, QUADRATIC, QUIET, 2, no_noise(start))
    assert chain.trajectory is None
    assert chain.energies is None
    assert chain.origins is None


def test_steps_counts_accepted_steps_only():
    start = torch.randn(1, 40, 2, generator=make_generator(), dtype=torch.float64)
    settings = StepSettings(step_size=0.1, noise_std=0.5, clip=1e6)
    noise = generator_noise(make_generator(1), start)
    chain = run("langevin", start, QUADRATIC, settings, 15, noise, record=True)
    moved = (chain.trajectory[1:] != chain.trajectory[:-1]).any(-1)
    assert torch.equal(chain.steps, moved.sum(0))
    assert 0 < chain.steps.double().mean() < 15


def test_origins_are_the_starts_of_the_guided_step():
    """Descending from each origin gives each next point: what the last line of eq. 10 relies on."""
    weights = random_weights(2, 3)
    start, z = torch.randn(2, 2, 6, 3, generator=make_generator(), dtype=torch.float64)
    target = target_of(weights, z)
    settings = StepSettings(step_size=2.0, noise_std=0.05, clip=0.03)
    noise = generator_noise(make_generator(1), start)
    chain = run("langevin_unchecked", start, target, settings, 5, noise, record=True)
    for origin, end in zip(chain.origins, chain.trajectory[1:]):
        grad = target.energy_and_grad(origin)[1].clamp(-0.03, 0.03)
        torch.testing.assert_close(end, origin - 2.0 * grad)


def test_keyed_noise_is_shared_by_sources_and_fresh_each_step():
    keys = torch.tensor([11, 12, 13])
    like = torch.zeros(2, 3, 4)
    noise = keyed_noise(keys, like)
    first, second = noise(0), noise(1)
    assert first.normal.shape == (2, 3, 4)
    assert first.uniform.shape == (2, 3)
    assert torch.equal(first.normal[0], first.normal[1])
    assert not torch.equal(first.normal, second.normal)
    assert not torch.equal(first.uniform, second.uniform)
    assert torch.equal(first.normal, noise(0).normal)
    # Normals and uniforms never share a stream.
    assert torch.equal(second.normal[0], keyed_normal(keys, 2, 4)[0])
    assert torch.equal(second.uniform[0], keyed_uniform(keys, 3))


def test_generator_noise_differs_between_sources_and_repeats_with_its_seed():
    like = torch.zeros(2, 3, 4, dtype=torch.float64)
    noise = generator_noise(make_generator(5), like)(0)
    assert noise.normal.dtype == noise.uniform.dtype == torch.float64
    assert not torch.equal(noise.normal[0], noise.normal[1])
    assert torch.equal(noise.normal, generator_noise(make_generator(5), like)(0).normal)


def test_unknown_sampler_gets_the_nearest():
    start = torch.ones(1, 1, 2, dtype=torch.float64)
    with pytest.raises(InputError, match="Did you mean 'langevin'"):
        run("langvin", start, QUADRATIC, QUIET, 1, no_noise(start))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("step_size", -1.0),
        ("noise_std", -0.1),
        ("clip", 0.0),
        ("clip", -1.0),
        ("momentum", 1.0),
        ("momentum", -0.1),
        *[(name, float("nan")) for name in ("step_size", "noise_std", "clip", "momentum")],
        ("step_size", float("inf")),
    ],
)
def test_bad_settings_are_an_error(setting, value):
    with pytest.raises(InputError, match=f"Expected `{setting}` to be .* but got {value}"):
        StepSettings(**{setting: value})
