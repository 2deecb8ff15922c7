"""Diagonal Gaussians: the latent's prior p(z|x) and posterior q(z|d_x); None for a network without latent."""

from typing import NamedTuple, overload

import torch
from torch import Tensor


class Gaussian(NamedTuple):
    """Mean and standard deviation of independent normals, same shape."""

    mean: Tensor
    std: Tensor

    def detach(self) -> "Gaussian":
        """The same Gaussian as a constant."""
        return Gaussian(self.mean.detach(), self.std.detach())

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One reparametrised draw: mean + std * eps."""
        eps = torch.randn(
            self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device
        )
        return self.mean + self.std * eps

    def gather(self, label: Tensor) -> "Gaussian":
        """Row `label[s, b]` of source s: (sources, classes, dim) -> (sources, batch, dim)."""
        return Gaussian(_chosen(self.mean, label), _chosen(self.std, label))


def _chosen(values: Tensor, label: Tensor) -> Tensor:
    """Row `label[s, b]` of source s, with a deterministic gradient: on CUDA that of indexing sums in a fixed
    order and that of `gather` does not; on a CPU it is the other way round."""
    if values.is_cuda:
        source = torch.arange(len(values), device=values.device).unsqueeze(1)
        return values[source, label]
    return values.gather(1, label.unsqueeze(-1).expand(*label.shape, values.shape[-1]))


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q || p), summed over the last axis.

    .. math:: \\sum_j \\log\\frac{\\sigma_p}{\\sigma_q}
              + \\frac{\\sigma_q^2 + (\\mu_q - \\mu_p)^2}{2\\sigma_p^2} - \\frac12

    Example:
        >>> one = torch.ones(1)
        >>> kl_divergence(Gaussian(one, one), Gaussian(0 * one, one))
        tensor(0.5000)
    """
    ratio = q.std / p.std
    shift = (q.mean - p.mean) / p.std
    return (0.5 * (ratio.square() + shift.square() - 1) - ratio.log()).sum(-1)


def draw(gaussian: Gaussian | None, generator: torch.Generator | None) -> Tensor | None:
    """One sample of the Gaussian, or None."""
    return None if gaussian is None else gaussian.sample(generator)


def detach(tensor: Tensor | None) -> Tensor | None:
    """The tensor as a constant, or None."""
    return None if tensor is None else tensor.detach()


@overload
def join(a: Tensor, b: Tensor) -> Tensor: ...
@overload
def join(a: Tensor | None, b: Tensor | None) -> Tensor | None: ...
def join(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Both, concatenated along the batch axis, or None."""
    return None if a is None or b is None else torch.cat([a, b], dim=1)
