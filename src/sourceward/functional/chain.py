"""The stacked energy as a chain uses it: no autograd, weights laid out once, the first layer's output given.

With a0 = Wx x + (Wz z + b0) known, the energy and its gradient are the formulas of `functional.energy`. A
sampler that knows how a step changes a0 need not multiply by Wx again: see `samplers.fused`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sourceward.functional.energy import EnergyWeights, swish
from sourceward.functional.rows import laid_out, matmul


class HalfWeights(NamedTuple):
    """The large matrices of `ChainWeights`, as products take them on CUDA."""

    up: Tensor
    down: Tensor
    narrow_up: Tensor
    narrow_down: Tensor


class ChainWeights(NamedTuple):
    """`EnergyWeights` of all sources, laid out for the chain: both directions contiguous."""

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
    """On CUDA."""

    @classmethod
    def of(cls, weights: EnergyWeights) -> "ChainWeights":
        w = weights.detach()
        full = cls(
            laid_out(w.feature),
            w.feature.contiguous(),
            None if w.latent is None else laid_out(w.latent),
            w.hidden_bias.unsqueeze(1),
            laid_out(w.narrow),
            w.narrow.contiguous(),
            w.narrow_bias.unsqueeze(1).contiguous(),
            w.out.unsqueeze(1).contiguous(),
            w.out_bias.unsqueeze(1).contiguous(),
        )
        return full._replace(half=full.halved()) if full.up.is_cuda else full

    def bias(self, latent: Tensor | None) -> Tensor:
        """Wz z + b0, constant along a chain: (sources, batch or 1, hidden)."""
        if self.latent is None:
            return self.hidden_bias
        if latent is None:
            raise ValueError("Expected `latent` for an energy E(x|z), but got None.")
        return matmul(latent, self.latent).add_(self.hidden_bias)

    def first(self, feature: Tensor, bias: Tensor) -> Tensor:
        """a0 of a feature: (sources, batch, dim) -> (sources, batch, hidden)."""
        return matmul(feature, self.up).add_(bias)

    def energy(self, a0: Tensor) -> Tensor:
        """E where the first layer gives `a0`: (sources, batch)."""
        return self._value(self._second(a0))

    def energy_and_grad(self, a0: Tensor) -> tuple[Tensor, Tensor]:
        """E and dE/dx where the first layer gives `a0`: (sources, batch) and (sources, batch, dim)."""
        value, back = self.backward_to_first(a0)
        return value, matmul(back, self.down)

    def backward_to_first(self, a0: Tensor) -> tuple[Tensor, Tensor]:
        """E and dE/da0: (sources, batch) and (sources, batch, hidden)."""
        a1 = self._second(a0)
        value = self._value(a1)
        slope = (value * (1 - value)).unsqueeze(-1)
        back = matmul(_swish_backward(slope * self.out, a1), self.narrow_down)
        return value, _swish_backward(back, a0)

    def halved(self, dtype: torch.dtype = torch.float16) -> "HalfWeights":
        """The large matrices in a smaller type, for tensor cores."""
        large = (self.up, self.down, self.narrow_up, self.narrow_down)
        return HalfWeights(*(w.to(dtype) for w in large))

    def _second(self, a0: Tensor) -> Tensor:
        return matmul(swish(a0), self.narrow_up, self.narrow_bias)

    def _value(self, a1: Tensor) -> Tensor:
        # A row-wise sum, not a matrix-vector product: BLAS picks that kernel by batch size.
        score = swish(a1).mul_(self.out).sum(-1).add_(self.out_bias)
        # In double: vectorised and single sigmoids differ by a last bit that must not be left over.
        return score.double().sigmoid_().to(score.dtype)


_swish_backward = torch.ops.aten.silu_backward
"""(grad, a) -> grad * swish'(a) in one pass."""
