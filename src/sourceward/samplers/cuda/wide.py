"""One step of the fused Langevin chain as six Triton kernels, for features of any width.

A wide matrix is shared by many programs, each with a block of its columns. `product` multiplies by Wx on the
way down (gradient, clip, scale) and on the way up (what the step adds to a0). Whoever has a block of a0 also
stores what the block contributes to the second layer; `decide` and `slope` add these parts for one sample,
always in the same order. So `decide` has the energy of the proposal, `go_on` takes what was accepted and
computes a0 at the origin of the next step, `slope` and `backward` lead from there back to dE/da0.
"""

import triton
import triton.language as tl


@triton.jit
def _swish(a):  # type: ignore[no-untyped-def]
    return a * tl.sigmoid(a)


@triton.jit
def _swish_slope(a):  # type: ignore[no-untyped-def]
    s = tl.sigmoid(a)
    return s * (1 + a * (1 - s))


@triton.jit
def _store_sums(a0, narrow_up, sums, m, k, rows, hidden, NARROW: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store swish(a0) @ W1^T over this program's columns k: a part of the second layer's output."""
    r, source = tl.arange(0, NARROW), tl.program_id(2)
    at = source * hidden * NARROW + k[:, None] * NARROW + r[None, :]
    w = tl.load(narrow_up + at, mask=k[:, None] < hidden, other=0.0)
    tile = source * tl.num_programs(1) + tl.program_id(1)
    part = tl.dot(_swish(a0).to(w.dtype), w)
    tl.store(sums + (tile * rows + m[:, None]) * NARROW + r[None, :], part, mask=m[:, None] < rows)


@triton.jit
def _second(sums, bias, tiles, rows, NARROW: tl.constexpr, TILES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The second layer's output at one sample: the parts that `_store_sums` stored, added in one order."""
    row, source, r = tl.program_id(0), tl.program_id(1), tl.arange(0, NARROW)
    total = tl.zeros((NARROW,), dtype=tl.float32)
    for start in range(0, tiles, TILES):
        tile = start + tl.arange(0, TILES)
        at = ((source * tiles + tile[:, None]) * rows + row) * NARROW + r[None, :]
        total += tl.sum(tl.load(sums + at, mask=tile[:, None] < tiles, other=0.0), axis=0)
    return total + tl.load(bias + source * NARROW + r)


@triton.jit
def product(  # type: ignore[no-untyped-def]
    left, right, plus, out, narrow_up, sums, rows, inner, cols, clip, scale,
    DOWN: tl.constexpr, NARROW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = scale * clip(left @ right) on the way down, plus + left @ right on the way up."""
    source = tl.program_id(2)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    left += source * rows * inner
    right += source * inner * cols
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, inner, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(left + m[:, None] * inner + k[None, :], mask=k[None, :] < inner, other=0.0)
        keep = (k[:, None] < inner) & (n[None, :] < cols)
        b = tl.load(right + k[:, None] * cols + n[None, :], mask=keep, other=0.0)
        total = tl.dot(a, b, total)
    offset = source * rows * cols + m[:, None] * cols + n[None, :]
    inside = (m[:, None] < rows) & (n[None, :] < cols)
    if DOWN:
        total = tl.minimum(tl.maximum(total, -clip), clip) * scale
    else:
        total += tl.load(plus + offset, mask=inside, other=0.0)
        _store_sums(total, narrow_up, sums, m, n, rows, cols, NARROW)
    tl.store(out + offset, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def decide(  # type: ignore[no-untyped-def]
    sums, tiles, energy_in, energy_out, taken, accepted, narrow_bias, out, out_bias, rows,
    ALWAYS: tl.constexpr, NARROW: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The energy of one proposal, and whether it is accepted."""
    at, source = tl.program_id(1) * rows + tl.program_id(0), tl.program_id(1)
    a1 = _second(sums, narrow_bias, tiles, rows, NARROW, TILES)
    top = tl.load(out + source * NARROW + tl.arange(0, NARROW))
    new, old = tl.sigmoid(tl.sum(_swish(a1) * top) + tl.load(out_bias + source)), tl.load(energy_in + at)
    accepts = (new - new) == 0.0 if ALWAYS else new <= old
    tl.store(energy_out + at, tl.where(accepts, new, old))
    tl.store(taken + at, tl.load(taken + at) + accepts.to(tl.int32))
    tl.store(accepted + at, accepts.to(tl.int32))


@triton.jit
def go_on(  # type: ignore[no-untyped-def]
    accepted, proposal, a_in, a_out, origin, lift, lift_stride, move, jitter, jitter_stride, x_in, x_out,
    narrow_up, sums, rows, dim, hidden,
    NOISY: tl.constexpr, MORE: tl.constexpr, NARROW: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Take accepted proposals; a0 at the origin of the next step, and parts of the layer after it."""
    source = tl.program_id(2)
    m, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BK + tl.arange(0, BK)
    at = source * rows + m
    new = tl.load(accepted + at)[:, None] != 0
    offset, inside = at[:, None] * dim + k[None, :], k[None, :] < dim
    x = tl.load(x_in + offset, mask=inside, other=0.0)
    y = x + tl.load(move + offset, mask=inside, other=0.0).to(tl.float32)
    if NOISY:
        near = jitter + source * jitter_stride + m[:, None] * dim + k[None, :]
        y += tl.load(near, mask=inside, other=0.0)
    tl.store(x_out + offset, tl.where(new, y, x), mask=inside)
    if MORE:
        offset, inside = at[:, None] * hidden + k[None, :], k[None, :] < hidden
        fresh = tl.load(proposal + offset, mask=inside, other=0.0)
        a0 = tl.where(new, fresh, tl.load(a_in + offset, mask=inside, other=0.0))
        tl.store(a_out + offset, a0, mask=inside)
        if NOISY:
            above = lift + source * lift_stride + m[:, None] * hidden + k[None, :]
            a0 += tl.load(above, mask=inside, other=0.0).to(tl.float32)
        tl.store(origin + offset, a0, mask=inside)
        _store_sums(a0, narrow_up, sums, m, k, rows, hidden, NARROW)


@triton.jit
def slope(  # type: ignore[no-untyped-def]
    sums, tiles, grads, narrow_bias, out, out_bias, rows, NARROW: tl.constexpr, TILES: tl.constexpr
):
    """dE/da1 at the origin of the next step of one sample."""
    at, source, r = tl.program_id(1) * rows + tl.program_id(0), tl.program_id(1), tl.arange(0, NARROW)
    a1 = _second(sums, narrow_bias, tiles, rows, NARROW, TILES)
    top = tl.load(out + source * NARROW + r)
    value = tl.sigmoid(tl.sum(_swish(a1) * top) + tl.load(out_bias + source))
    grad = value * (1 - value) * top * _swish_slope(a1)
    tl.store(grads + at * NARROW + r, grad.to(grads.dtype.element_ty))


@triton.jit
def backward(  # type: ignore[no-untyped-def]
    grads, narrow_down, origin, back, rows, hidden,
    NARROW: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dE/da0 at the origin of the next step."""
    source, r = tl.program_id(2), tl.arange(0, NARROW)
    m, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BK + tl.arange(0, BK)
    at = source * rows + m[:, None]
    offset, inside = at * hidden + k[None, :], k[None, :] < hidden
    w = tl.load(narrow_down + (source * NARROW + r[:, None]) * hidden + k[None, :], mask=inside, other=0.0)
    a0 = tl.load(origin + offset, mask=inside, other=0.0)
    b = tl.dot(tl.load(grads + at * NARROW + r[None, :]), w) * _swish_slope(a0)
    tl.store(back + offset, b.to(back.dtype.element_ty), mask=inside)
