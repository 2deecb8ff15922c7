"""Products and elementwise functions whose rows do not depend on the number of rows."""

from contextlib import nullcontext

import pytest
import torch

from sourceward.functional import row_multiple
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
