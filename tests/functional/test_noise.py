"""Noise keyed by the sample: moments, independence, and what a key depends on.

Tolerances are five standard errors of the estimate, from the moments of a standard normal.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sourceward.functional import keyed_normal, keyed_uniform, row_keys

ROWS, DIM = 4000, 50


@pytest.fixture(scope="module")
def keys() -> Tensor:
    rows = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    return row_keys(rows)


def correlation(a: Tensor, b: Tensor) -> float:
    """For independent standard normals: mean 0, standard error 1/sqrt(count)."""
    return (a * b).mean().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_are_those_of_a_standard_normal(keys, dtype):
    noise = keyed_normal(keys, 0, DIM, dtype)[0].double()
    count = noise.numel()
    # Var[x] = 1, Var[x^2] = 2, Var[x^3] = 15, Var[x^4] = 105 - 9 = 96.
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        error = abs((noise**power).mean().item() - mean)
        assert error < 5 * math.sqrt(variance / count), f"moment {power}"


def test_every_column_has_unit_variance(keys):
    noise = keyed_normal(keys, 0, DIM, torch.float64)[0]
    # 50 columns are tried, so the largest of them is allowed 5 standard errors of one.
    assert (noise.square().mean(0) - 1).abs().max() < 5 * math.sqrt(2 / ROWS)
    assert noise.mean(0).abs().max() < 5 / math.sqrt(ROWS)


def test_uniforms_are_uniform(keys):
    uniform = keyed_uniform(keys, 1, torch.float64)
    assert uniform.shape == (ROWS,)
    assert (uniform > 0).all()
    assert (uniform <= 1).all()
    assert abs(uniform.mean().item() - 0.5) < 5 * math.sqrt(1 / 12 / ROWS)
    # Kolmogorov-Smirnov: P(sup|F_n - F| > 2.2 / sqrt(n)) < 2 exp(-2 * 2.2^2) = 1.3e-4
    gap = (uniform.sort().values - torch.arange(1, ROWS + 1) / ROWS).abs().max()
    assert gap < 2.2 / math.sqrt(ROWS)


def test_keys_streams_positions_and_draws_are_independent(keys):
    noise = keyed_normal(keys, 0, DIM, torch.float64, draws=2)
    other = keyed_normal(keys, 1, DIM, torch.float64)[0]
    half = DIM // 2
    bound = 5 / math.sqrt(ROWS * half)
    assert abs(correlation(noise[0], other)) < bound
    assert abs(correlation(noise[0], noise[1])) < bound
    assert abs(correlation(noise[0, :-1], noise[0, 1:])) < bound
    assert abs(correlation(noise[0, :, :half], noise[0, :, half:])) < bound  # the two numbers of a pair
    assert abs(correlation(noise[0, :, :-1], noise[0, :, 1:])) < bound
    # Squares as well: Var[(x^2 - 1)(y^2 - 1)] = 4.
    squares = noise.square() - 1
    assert abs(correlation(squares[0, :, :half], squares[0, :, half:])) < 2 * bound
    assert abs(correlation(squares[0], other.square() - 1)) < 2 * bound


def test_neighbouring_keys_and_streams_are_independent():
    # Counters, the worst keys a hash could be handed.
    noise = keyed_normal(torch.arange(ROWS), 0, DIM, torch.float64)[0]
    shifted = keyed_normal(torch.arange(ROWS), 1, DIM, torch.float64)[0]
    bound = 5 / math.sqrt(ROWS * (DIM - 1))
    for lag in (1, 2, 3):
        assert abs(correlation(noise[:-lag], noise[lag:])) < bound
        assert abs(correlation(noise[:, :-lag], shifted[:, lag:])) < bound
        assert abs(correlation(noise[:-lag], shifted[lag:])) < bound


def test_draws_differ_and_repeat():
    keys = torch.tensor([3, 5])
    noise = keyed_normal(keys, 0, 6, draws=3)
    assert noise.shape == (3, 2, 6)
    assert len(noise.unique()) == noise.numel()
    assert torch.equal(noise, keyed_normal(keys, 0, 6, draws=3))
    assert not torch.equal(noise, keyed_normal(keys, 1, 6, draws=3))


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40),
    st.integers(0, 2**40),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_a_row_depends_on_its_key_alone(words, stream, dim, draws):
    keys = torch.tensor(words)
    noise = keyed_normal(keys, stream, dim, draws=draws)
    uniform = keyed_uniform(keys, stream)
    assert torch.isfinite(noise).all()
    for row in range(len(words)):
        alone = keyed_normal(keys[row : row + 1], stream, dim, draws=draws)[:, 0]
        # The vectorised and the scalar logarithm and cosine may round differently.
        torch.testing.assert_close(noise[:, row], alone, rtol=1e-5, atol=1e-6)
        assert uniform[row] == keyed_uniform(keys[row : row + 1], stream)[0]


def test_known_words():
    """The bits are part of the contract: a model's predictions must not change with a release."""
    uniform = keyed_uniform(torch.tensor([0, 1, -1]), 0, torch.float64) * 2**24
    assert [splitmix_low_24(key, 0) for key in (0, 1, -1)] == uniform.tolist()


def splitmix_low_24(key: int, stream: int) -> int:
    """The first word of a key and stream in Python integers, low 24 bits plus one."""
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & mask
        return word ^ (word >> 31)

    start = mix((mix(key & mask) + golden * (stream + 1)) & mask)
    return (mix((start + golden) & mask) & 0xFFFFFF) + 1


def test_row_keys_follow_content_and_seed():
    rows = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    keys = row_keys(rows)
    assert keys.shape == (6,)
    assert keys.dtype == torch.int64
    assert len(keys.unique()) == 6
    assert torch.equal(keys, row_keys(rows.copy()))
    assert torch.equal(keys[[4, 0]], row_keys(rows[[4, 0]]))
    assert torch.equal(keys, row_keys(np.asfortranarray(rows)))
    assert not (keys == row_keys(rows, seed=1)).any()
    changed = rows.copy()
    changed[2, 1] = np.nextafter(changed[2, 1], np.float32(9))
    assert (keys == row_keys(changed)).tolist() == [True, True, False, True, True, True]


def test_negative_zero_is_zero():
    assert torch.equal(row_keys(np.array([[-0.0, 1.0]])), row_keys(np.array([[0.0, 1.0]])))


def test_no_rows_have_no_keys():
    assert row_keys(np.zeros((0, 3), dtype=np.float32)).shape == (0,)
    assert keyed_normal(torch.zeros(0, dtype=torch.int64), 0, 3).shape == (1, 0, 3)
