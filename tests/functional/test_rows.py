"""Products and elementwise functions whose rows do not depend on the number of rows."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sourceward.functional import keyed_normal, keyed_uniform, row_keys, row_multiple
from sourceward.functional.rows import (
    GRAIN,
    TILE,
    elementwise,
    matmul,
    stable_matmul,
    thread_chunks,
    transpose_contiguous,
)
from tests.helpers import make_generator


@pytest.mark.parametrize("inner", [5, 512, 1300])
@pytest.mark.parametrize("plus", [False, True])
def test_matmul_is_the_product(inner, plus):
    generator = make_generator()
    rows = torch.randn(2, 4, inner, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 3, inner, generator=generator, dtype=torch.float64)
    more = torch.randn(2, 1, 3, generator=generator, dtype=torch.float64) if plus else None
    expected = torch.einsum("smk,snk->smn", rows, weight) + (0 if more is None else more)
    torch.testing.assert_close(matmul(rows, transpose_contiguous(weight), more), expected)
    torch.testing.assert_close(matmul(rows[0], transpose_contiguous(weight[0])), rows[0] @ weight[0].T)


@pytest.mark.parametrize(("inner", "outer"), [(6, 2), (64, 3), (512, 512), (1100, 65), (2048, 128)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(inner, outer):
    generator = make_generator()
    rows = torch.randn(3, 256, inner, generator=generator)
    weight = transpose_contiguous(torch.randn(3, outer, inner, generator=generator))
    whole, multiple = matmul(rows, weight), row_multiple(inner)
    for count in (multiple, 2 * multiple, 3 * multiple):
        assert torch.equal(matmul(rows[:, :count].contiguous(), weight), whole[:, :count]), count
        assert torch.equal(matmul(rows[0, :count], weight[0]), matmul(rows[0], weight[0])[:count]), count


@pytest.mark.parametrize("inner", [8, 50, 256, 1100])
@pytest.mark.parametrize("outer", [*range(1, 13), 15, 17, 50])
def test_a_row_has_the_same_bits_in_any_place(inner, outer):
    """The same row many times: its narrow result starts at another address each time."""
    generator = make_generator()
    rows = torch.randn(1, 1, inner, generator=generator).repeat(3, 3 * row_multiple(inner), 1)
    weight = transpose_contiguous(torch.randn(1, outer, inner, generator=generator)).repeat(3, 1, 1)
    plus, out = torch.randn(1, 1, outer, generator=generator), torch.empty(*rows.shape[:2], outer)
    products = (
        matmul(rows, weight),
        matmul(rows, weight, plus),
        matmul(rows, weight, plus.expand(3, -1, -1), out=out),
        matmul(rows[0], weight[0]),
        stable_matmul(rows[0, :5], weight[0]),
    )
    for product in products:
        assert product.is_contiguous()
        flat = product.view(-1, outer)
        assert torch.equal(flat, flat[:1].expand_as(flat))
    assert torch.equal(products[1], products[2])


def test_a_narrow_product_has_gradients():
    rows, weight = torch.randn(8, 50, requires_grad=True), torch.randn(50, 3)
    matmul(rows, weight).sum().backward()
    torch.testing.assert_close(rows.grad, weight.sum(1).expand(8, -1))
    matmul(rows.detach(), weight.requires_grad_()).sum().backward()
    torch.testing.assert_close(weight.grad, rows.detach().sum(0).unsqueeze(1).expand(-1, 3))


@pytest.mark.parametrize("inner", [5, 1300])
def test_a_product_is_written_to_out(inner):
    rows, weight = torch.randn(2, 4, inner), torch.randn(2, inner, 3)
    more, out = torch.randn(2, 1, 3), torch.full((2, 4, 3), float("nan"))
    for plus in (None, more):
        assert matmul(rows, weight, plus, out=out) is out
        assert torch.equal(out, matmul(rows, weight, plus))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    "shape", [(3,), (0, 4), (2, GRAIN), (5, GRAIN), (11, GRAIN // 2), (3, 7, GRAIN // 8 + 32)]
)
@pytest.mark.parametrize("apart", [False, True])
def test_elementwise_functions_are_split_and_joined(shape, threads, apart, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    numbers = torch.randn(*shape, 2, generator=make_generator())[..., 0] if apart else torch.randn(shape)
    assert torch.equal(elementwise(torch.neg, numbers), -numbers)
    out = torch.empty(shape)
    for chunk, result in thread_chunks(numbers, out):
        torch.neg(chunk, out=result)
    assert torch.equal(out, -numbers)


@pytest.mark.parametrize("rows", [0, 1, TILE, 2 * TILE + 3])
def test_rows_are_multiplied_in_tiles_on_an_accelerator(rows, monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # the meta device has none
    monkeypatch.setattr("sourceward.functional.rows.matmul", lambda a, b: seen.append(len(a)) or a @ b)
    found = stable_matmul(torch.zeros(rows, 2, 5, device="meta"), torch.zeros(5, 3, device="meta"))
    assert found.shape == (rows, 2, 3)
    assert set(seen) <= {TILE if rows else 0}


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
