"""Eq. 7 (without latent) and eq. 10 (with latent) of the paper.

Both have three lines. With `sg` a stop-gradient, p_d the source's own samples and q the ends of chains that
started from other sources::

    L =   E_pd[ -log p(y|z,x) + KL(q(z|d_x) || p(z|x)) ]                       classify
        + E_pd[ E(x|z) ] - E_sg(q)[ E(x|z) ]                                   contrast
        + E_q [ E_sg(theta)(x|z) - log p_sg(phi)(y|z,x) - KL_sg(phi) ]         guide

Eq. 7 is the same without z and without the two KL terms. The *guide* line reaches theta only through the
sample: every parameter inside it is frozen, but x was produced by a gradient step on E_theta. It is what
makes the chain keep labels.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sourceward.functional.energy import EnergyWeights, energy_and_grad
from sourceward.functional.gaussian import Gaussian, kl_divergence


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
