"""The stacked energy for long chains: no autograd, weights transposed once, the first layer's output given.

With a0 = Wx x + (Wz z + b0) known, the energy and its gradient are the formulas of `functional.energy`. A
sampler that knows how a step changes a0 need not multiply by Wx again: see `samplers.chain`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sourceward.functional.energy import EnergyWeights
from sourceward.functional.rows import GRAIN, matmul, thread_chunks, transpose_contiguous

WIDE = 512
"""Up to this width the start of a chain is computed in single precision on CUDA; for wider features in half
precision, as every step is: in single precision it takes as long as eight steps."""


class HalfWeights(NamedTuple):
    """The large matrices of `ChainWeights` in half precision, for products on CUDA."""

    up: Tensor
    down: Tensor
    narrow_up: Tensor
    narrow_down: Tensor
    latent: Tensor | None


class ChainWeights(NamedTuple):
    """`EnergyWeights` of all sources, for products in both directions."""

    up: Tensor
    """Wx^T: (sources, dim, hidden)."""
    down: Tensor
    """Wx: (sources, hidden, dim)."""
    latent: Tensor | None
    """Wz^T: (sources, dim, hidden)."""
    hidden_bias: Tensor
    """b0: (sources, 1, hidden)."""
    narrow_up: Tensor
    """W1^T: (sources, hidden, narrow)."""
    narrow_down: Tensor
    """W1: (sources, narrow, hidden)."""
    narrow_bias: Tensor
    """b1: (sources, 1, narrow)."""
    out: Tensor
    """w2: (sources, 1, narrow)."""
    out_bias: Tensor
    """b2: (sources, 1)."""
    half: "HalfWeights | None" = None
    """On CUDA only."""

    @classmethod
    def of(cls, weights: EnergyWeights) -> "ChainWeights":
        w = weights.detach()
        up, narrow_up = transpose_contiguous(w.feature), transpose_contiguous(w.narrow)
        full = cls(
            up,
            up.mT,  # one matrix for both directions stays in the cache of a CPU
            None if w.latent is None else transpose_contiguous(w.latent),
            w.hidden_bias.unsqueeze(1),
            narrow_up,
            narrow_up.mT,
            w.narrow_bias.unsqueeze(1).contiguous(),
            w.out.unsqueeze(1).contiguous(),
            w.out_bias.unsqueeze(1).contiguous(),
        )
        return full._replace(half=full.halved()) if up.is_cuda else full

    def bias(self, latent: Tensor | None) -> Tensor:
        """Wz z + b0, constant along a chain: (sources, batch or 1, hidden)."""
        if self.latent is None:
            return self.hidden_bias
        if latent is None:
            raise ValueError("Expected `latent` for an energy E(x|z), but got None.")
        if self.half is not None and self.half.latent is not None and latent.dtype == torch.float32:
            return half_product(latent, self.half.latent).add_(self.hidden_bias)
        return matmul(latent, self.latent).add_(self.hidden_bias)

    def first(self, feature: Tensor, bias: Tensor) -> Tensor:
        """a0 = Wx x + bias: (sources, batch, dim) -> (sources, batch, hidden)."""
        return matmul(feature, self.up, bias)

    def energy(self, a0: Tensor) -> Tensor:
        """E for a first layer output `a0`: (sources, batch)."""
        return Workspace(self, a0).energy(a0)

    def energy_and_grad(self, a0: Tensor) -> tuple[Tensor, Tensor]:
        """E and dE/dx for a first layer output `a0`: (sources, batch) and (sources, batch, dim)."""
        value, back = Workspace(self, a0).backward_to_first(a0)
        return value.to(a0.dtype), matmul(back, self.down)

    def halved(self, dtype: torch.dtype = torch.float16) -> "HalfWeights":
        """The large matrices in `dtype`, contiguous, for kernels on tensor cores."""
        large = (self.up, self.down, self.narrow_up, self.narrow_down)
        latent = None if self.latent is None or self.latent.shape[1] <= WIDE else self.latent.to(dtype)
        up, down, narrow_up, narrow_down = (w.to(dtype).contiguous() for w in large)
        return HalfWeights(up, down, narrow_up, narrow_down, latent)


def half_product(rows: Tensor, weight: Tensor) -> Tensor:
    """rows @ weight by tensor cores, rows rounded to the weight's half precision; the sums are single."""
    return torch.bmm(rows.to(weight.dtype), weight, out_dtype=torch.float32)


class Workspace:
    """Energy and gradient of `ChainWeights` at a0, in memory that is reused by every call.

    Args:
        weights: of all sources.
        like: an a0, (sources, batch, hidden).
        scale: factor of the gradient.
    """

    def __init__(self, weights: ChainWeights, like: Tensor, scale: float = 1.0) -> None:
        self.weights, self.top = weights, weights.out if scale == 1 else weights.out * scale
        self.out_bias = weights.out_bias.double()
        self.hidden, self.back = torch.empty_like(like), torch.empty_like(like)
        self.a1 = like.new_empty(*like.shape[:2], weights.out.shape[-1])
        self.narrow = torch.empty_like(self.a1)
        self.value = like.new_empty(like.shape[:2], dtype=torch.float64)

    def energy(self, a0: Tensor) -> Tensor:
        """E: (sources, batch), new memory."""
        return self._forward(a0).to(a0.dtype, copy=True)

    def backward_to_first(self, a0: Tensor) -> tuple[Tensor, Tensor]:
        """E in double, and scale * dE/da0, (sources, batch, hidden); valid until the next call."""
        value = self._forward(a0)
        return value, self._backward(a0, value.unsqueeze(-1), self.a1, self.narrow)

    def _forward(self, a0: Tensor) -> Tensor:
        _swish(a0, out=self.hidden)
        matmul(self.hidden, self.weights.narrow_up, self.weights.narrow_bias, out=self.a1)
        # A row-wise sum, not a matrix-vector product: BLAS picks that kernel by batch size. In double,
        # because vectorised and scalar sigmoids of single precision differ in the last bit.
        top = _swish(self.a1, out=self.narrow).mul_(self.weights.out)
        return torch.sum(top, -1, dtype=torch.float64, out=self.value).add_(self.out_bias).sigmoid_()

    def _backward(self, a0: Tensor, value: Tensor, a1: Tensor, narrow: Tensor) -> Tensor:
        slope = torch.addcmul(value, value, value, value=-1).to(a0.dtype)  # E (1 - E)
        torch.mul(slope, self.top, out=narrow)
        _swish_backward(narrow, a1)
        matmul(narrow, self.weights.narrow_down, out=self.back)
        return _swish_backward(self.back, a0)


class Lookahead(Workspace):
    """A `Workspace` for two points at once: the end of a step, and the origin of the next step.

    With few samples the number of operations decides the time, and this halves it. Results are the same.
    """

    def __init__(self, weights: ChainWeights, like: Tensor, scale: float = 1.0) -> None:
        sources, rows, hidden = like.shape
        self.pair = like.new_empty(sources, 2 * rows, hidden)
        super().__init__(weights, self.pair, scale)
        # Views of tensors are created once: each takes as long as an operation.
        self.end, self.origin = self.pair.unflatten(1, (2, rows)).unbind(1)
        self.end_value, origin_value = self.value.view(sources, 2, rows).unbind(1)
        self.origin_value = origin_value.unsqueeze(-1)
        self.origin_a1 = self.a1.unflatten(1, (2, rows))[:, 1]
        self.back, self.origin_narrow = torch.empty_like(like), torch.empty_like(self.origin_a1)

    def energy_and_ahead(self, a0: Tensor, lift: Tensor) -> Tensor:
        """E at a0, (sources, batch), new memory; `backward_ahead` is then at `origin` = a0 + lift."""
        self.end.copy_(a0)
        torch.add(a0, lift, out=self.origin)
        self._forward(self.pair)
        return self.end_value.to(a0.dtype, copy=True)

    def backward_ahead(self) -> Tensor:
        """scale * dE/da0 at `origin`, (sources, batch, hidden); valid until the next call."""
        return self._backward(self.origin, self.origin_value, self.origin_a1, self.origin_narrow)


def _swish(a: Tensor, out: Tensor) -> Tensor:
    """swish(a) in one pass, written to `out`."""
    for piece in (
        ((a, out),) if a.numel() <= GRAIN else thread_chunks(a, out)
    ):  # the loop costs time with few samples
        torch.ops.aten.silu.out(piece[0], out=piece[1])
    return out


def _swish_backward(grad: Tensor, a: Tensor) -> Tensor:
    """grad * swish'(a) in one pass, written to `grad`."""
    for piece in ((grad, a),) if a.numel() <= GRAIN else thread_chunks(grad, a):
        torch.ops.aten.silu_backward.grad_input(*piece, grad_input=piece[0])
    return grad
