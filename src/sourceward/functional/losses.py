"""Eq. 7 (without latent) and eq. 10 (with latent) of the paper.

Both have three lines. With `sg` a stop-gradient, p_d the source's own samples and q the ends of chains that
started from other sources::

    L =   E_pd[ -log p(y|z,x) + KL(q(z|d_x) || p(z|x)) ]                       classify
        + E_pd[ E(x|z) ] - E_sg(q)[ E(x|z) ]                                   contrast
        + E_q [ E_sg(theta)(x|z) - log p_sg(phi)(y|z,x) - KL_sg(phi) ]         guide

Eq. 7 is the same without z and without the two KL terms. The *guide* line reaches theta only through the
sample: every parameter inside it is frozen, but x was produced by a gradient step on E_theta. It is what
makes the chain keep labels.

Also here: the Gaussians of the latent and their KL, and the negatives from which chains start in training.
The negatives of one source are the positives of the others, so one backbone pass serves all. A lone source
uses shifted samples if it is given any, otherwise its own samples plus noise.
"""

from dataclasses import dataclass
from typing import NamedTuple, overload

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sourceward.functional.energy import EnergyWeights, energy_and_grad


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


@dataclass(frozen=True)
class Coefficients:
    """Weight of each term. The defaults are the released code's: KL 0.1, no KL in the guide, the rest 1."""

    classify: float = 1.0
    kl: float = 0.1
    contrast: float = 1.0
    guide_energy: float = 1.0
    guide_label: float = 1.0
    guide_kl: float = 0.0

    @classmethod
    def paper(cls) -> "Coefficients":
        """Eq. 10 as printed: every term with weight 1."""
        return cls(kl=1.0, guide_kl=1.0)


class Positive(NamedTuple):
    """What the loss needs of the source's own samples, each (sources, batch, ...)."""

    logits: Tensor
    label: Tensor
    energy: Tensor
    posterior: Gaussian | None = None
    prior: Gaussian | None = None


class Guided(NamedTuple):
    """What the loss needs of the samples that one differentiable step produced, (sources, batch, ...).

    The parameters of energy, classifier and latent network are frozen here; only x depends on theta.
    """

    energy: Tensor
    logits: Tensor
    label: Tensor
    posterior: Gaussian | None = None
    prior: Gaussian | None = None


class Loss(NamedTuple):
    """The terms of the loss; `total` is minimised."""

    total: Tensor
    classify: Tensor
    kl: Tensor
    contrast: Tensor
    guide: Tensor


def eq7(positive: Positive, negative_energy: Tensor, guided: Guided, c: Coefficients) -> Loss:
    """The objective without latent (paper, eq. 7), averaged over sources.

    Args:
        positive: the source's own samples; its Gaussians are ignored.
        negative_energy: (sources, batch), E of the chain ends, which are constants.
        guided: samples after one differentiable step.
        c: weights of the terms.
    """
    zero = positive.energy.new_zeros(())
    return _total(positive, negative_energy, guided, c, kl=zero, guide_kl=zero)


def eq10(positive: Positive, negative_energy: Tensor, guided: Guided, c: Coefficients) -> Loss:
    """The objective with latent (paper, eq. 10), averaged over sources.

    The KL in the guide line has the printed sign, minus; the released code drops the term
    (`guide_kl=0`, the default).
    """
    if positive.posterior is None or positive.prior is None:
        raise ValueError("Expected `posterior` and `prior` of the positives for eq. 10, but got None.")
    kl = kl_divergence(positive.posterior, positive.prior).mean()
    guide_kl = torch.zeros_like(kl)
    if c.guide_kl:
        if guided.posterior is None or guided.prior is None:
            raise ValueError(
                "Expected `posterior` and `prior` of the guided samples when `guide_kl` is not 0."
            )
        guide_kl = kl_divergence(guided.posterior, guided.prior).mean()
    return _total(positive, negative_energy, guided, c, kl=kl, guide_kl=guide_kl)


def guided_step(
    weights: EnergyWeights, feature: Tensor, bias: Tensor, step_size: float | Tensor, clip: float
) -> Tensor:
    """One sampler step as a function of theta: x - step_size * clip(dE/dx), with x and z constants.

    This is the x of the guide line. The gradient is closed-form, so a single backward reaches theta.
    """
    _, grad = energy_and_grad(weights, feature.detach(), bias)
    return feature.detach() - step_size * grad.clamp(-clip, clip)


def _total(
    positive: Positive, negative_energy: Tensor, guided: Guided, c: Coefficients, kl: Tensor, guide_kl: Tensor
) -> Loss:
    classify = _cross_entropy(positive.logits, positive.label)
    contrast = positive.energy.mean() - negative_energy.mean()
    guide = (
        c.guide_energy * guided.energy.mean()
        + c.guide_label * _cross_entropy(guided.logits, guided.label)
        - c.guide_kl * guide_kl
    )
    total = c.classify * classify + c.kl * kl + c.contrast * contrast + guide
    return Loss(total, classify, kl, contrast, guide)


def _cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, -2), label.flatten())


class Batch(NamedTuple):
    """Rescaled features of every source, and optionally labelled shifted samples."""

    feature: Tensor
    """(sources, batch, dim)."""
    label: Tensor
    """(sources, batch)."""
    shifted: Tensor | None = None
    """(rows, dim): samples of no source, which join the negatives of all."""
    shifted_label: Tensor | None = None
    """(rows,)."""


def negatives(
    batch: Batch, chains: int | None, shift_noise: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Labelled chain starts for each source, none of them its own: (sources, chains, dim), (sources, chains).

    Args:
        batch: features of all sources.
        chains: chains per source; as many as the batch has rows when None.
        shift_noise: std of the noise that turns a lone source's own features into negatives.
        generator: of the draws.
    """
    feature, label = batch.feature, batch.label
    sources, rows = label.shape
    chains, device = chains or rows, feature.device
    if batch.shifted is None and sources == 1:
        return jitter(feature[:, :chains], shift_noise, generator), label[:, :chains]
    pool, pool_label = feature.flatten(0, 1), label.flatten()
    others = (sources - 1) * rows
    if batch.shifted is not None and batch.shifted_label is not None:
        if sources == 1 and len(batch.shifted) == chains:  # drawn for these chains
            return batch.shifted[None], batch.shifted_label[None]
        pool, pool_label = torch.cat([pool, batch.shifted]), torch.cat([pool_label, batch.shifted_label])
        others += len(batch.shifted)
    pick = torch.randint(others, (sources, chains), generator=generator, device=device)
    own = torch.arange(sources, device=device).unsqueeze(1) * rows
    pick = pick + rows * (pick >= own)  # skip the source's own rows
    return pool[pick], pool_label[pick]


def jitter(feature: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
    """Add Gaussian noise; with `std` 0 nothing is drawn."""
    if not std:
        return feature
    eps = torch.randn(feature.shape, generator=generator, device=feature.device, dtype=feature.dtype)
    return feature + std * eps
