"""`Network`: backbone, latent network, head, energies and what is estimated from the sources; `Projected`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.functional import (
    LEVELS,
    Gaussian,
    class_centers,
    energy,
    energy_quantiles,
    latent_bias,
    mixture_weight,
    whitening,
)
from sourceward.functional.aggregation import log_mixture
from sourceward.functional.rows import stable_matmul
from sourceward.nn.energy import DistilledStep, StackedEnergy
from sourceward.nn.feature_statistics import FeatureStatistics
from sourceward.nn.heads import HEADS, Head, LatentNet, LinearHead

CALIBRATION_ROWS = 4096
"""Samples of a source from which its energy quantiles are estimated."""

CLASSIFIER_WEIGHT = 8
"""Weight of each learned classifier of a pooled head; `Network.lda_weight` is an integer beside it."""


class Network(nn.Module):
    """Backbone psi, latent network phi, head, energies theta and the class centres of each source.

    Args:
        sources, classes, dim: sizes.
        head: a name in `HEADS`.
        backbone: any module from inputs to (batch, dim); None when inputs are features already.
        hidden: width of the energy's first layer, `dim` when None.
        dropout: of the energy.
    """

    shift: Tensor
    scale: Tensor
    centers: Tensor
    energy_quantiles: Tensor
    """(sources, levels): of each source's energy over its own held-out samples."""
    lda_scale: Tensor
    """Factor of the LDA logits, fitted on held-out samples."""
    lda_weight: Tensor
    """Weight of LDA in the mixture of a pooled head, where learned classifiers have `CLASSIFIER_WEIGHT`."""
    latent: LatentNet | None
    distilled: DistilledStep | None
    white: Tensor | None
    unwhite: Tensor | None
    amplitudes: Tensor | None
    """(sources, 3, height, width // 2 + 1): mean Fourier amplitude spectrum of each source's images."""
    held_out: Tensor | None
    """(rows, sources + 3): of samples that nothing was trained on, the energy of each source, confidence,
    agreement and the number of their own source; drift is measured against them."""
    feature_statistics: FeatureStatistics | None
    """Channel statistics of the backbone's early maps for each source, for AdaIN."""

    def __init__(
        self,
        sources: int,
        classes: int,
        dim: int,
        head: str = "prototype",
        backbone: nn.Module | None = None,
        hidden: int | None = None,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.sources, self.classes, self.dim = sources, classes, dim
        self.backbone = backbone
        self.head: Head = HEADS[head](dim, classes, sources)
        self.latent = LatentNet(dim) if self.head.uses_latent else None
        self.energy = StackedEnergy(sources, dim, hidden, latent=self.head.uses_latent, dropout=dropout)
        self.distilled = self.feature_statistics = None
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("white", None)
        self.register_buffer("unwhite", None)
        self.register_buffer("amplitudes", None)
        self.register_buffer("held_out", None)
        self.register_buffer("centers", torch.zeros(sources, classes, dim))
        self.register_buffer("energy_quantiles", LEVELS.repeat(sources, 1))
        self.register_buffer("lda_scale", torch.zeros(()))
        self.register_buffer("lda_weight", torch.zeros((), dtype=torch.long))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise everything but the backbone: uniform in +-1/sqrt(inputs), as `nn.Linear`."""
        if isinstance(self.head, LinearHead):
            self.head.reset_parameters(generator)
        for module in (self.head, self.latent):
            for layer in module.modules() if module is not None else ():
                if isinstance(layer, nn.Linear):
                    bound = layer.in_features**-0.5
                    for parameter in (layer.weight, layer.bias):
                        value = torch.rand(parameter.shape, generator=generator) * 2 * bound - bound
                        parameter.data.copy_(value)
        self.energy.reset_parameters(generator)

    def features(self, inputs: Tensor) -> Tensor:
        """Inputs (batch, ...) to centred features of norm about sqrt(dim): (batch, dim)."""
        return self.rescale(inputs if self.backbone is None else self.backbone(inputs))

    def rescale(self, raw: Tensor) -> Tensor:
        """Centre, whiten and scale the backbone's features: (batch, dim)."""
        centred = raw - self.shift
        return (centred if self.white is None else stable_matmul(centred, self.white)) * self.scale

    def raw(self, feature: Tensor) -> Tensor:
        """Features in the units of the backbone: the inverse of `rescale`."""
        feature = feature / self.scale
        return (feature if self.unwhite is None else stable_matmul(feature, self.unwhite)) + self.shift

    @torch.no_grad()
    def fit_scale(self, raw: Tensor, covariance: Tensor | None = None) -> None:
        """Centre source features and bring their mean norm to sqrt(dim), from (batch, dim) raw features.

        One step size then serves every backbone, and a head without bias is not hurt by a common offset.
        With a covariance they are whitened first: see `functional.statistics`.
        """
        self.scale.fill_(1.0)
        self.shift.copy_(raw.mean(0))
        if covariance is not None:
            self.white, self.unwhite = (root.to(self.shift) for root in whitening(covariance))
        norm = self.rescale(raw).norm(dim=-1).mean()
        self.scale.copy_(self.dim**0.5 / norm.clamp_min(torch.finfo(norm.dtype).tiny))

    @torch.no_grad()
    def fit_centers(self, source: int, feature: Tensor, label: Tensor) -> Tensor:
        """Store the class centres of one source from (batch, dim) features; returns counts per class."""
        centers, count = class_centers(feature.unsqueeze(0), label.unsqueeze(0), self.classes)
        present = (count[0] > 0).unsqueeze(-1)
        self.centers[source] = torch.where(present, centers[0].to(self.centers.dtype), self.centers[source])
        return count[0]

    @torch.no_grad()
    def fill_centers(self) -> None:
        """For a class missing in a source, store the mean centre of the sources that have it."""
        has = self.centers.abs().sum(-1, keepdim=True) > 0
        mean = self.centers.sum(0) / has.sum(0).clamp_min(1)
        self.centers.copy_(torch.where(has, self.centers, mean))

    @torch.no_grad()
    def fit_calibration(self, source: int, feature: Tensor) -> None:
        """Store quantiles of the energy of one source over its own samples, (batch, dim)."""
        feature = feature[:CALIBRATION_ROWS]
        rows = feature.expand(self.sources, -1, -1)
        prior, weights = self.prior(rows), self.energy.weights()
        bias = latent_bias(weights, None if prior is None else prior.mean)
        self.energy_quantiles[source] = energy_quantiles(energy(weights, rows, bias)[source])

    def lda(self) -> tuple[Tensor, Tensor]:
        """Weight (classes, dim) and bias (classes,) of linear discriminant analysis, in closed form.

        In whitened features this is the nearest class centre, pooled over all sources.
        """
        center = self.centers.mean(0)
        return self.lda_scale * center, -0.5 * self.lda_scale * center.square().sum(-1)

    @torch.no_grad()
    def fit_lda(self, feature: Tensor, label: Tensor) -> None:
        """Fit the scale of the LDA logits, and the weight of LDA in the mixture of classifiers.

        That weight is by how much LDA's share of the most likely mixture with the learned classifiers exceeds
        one half; it is zero if LDA explains held-out samples no better. Features of a backbone that was
        trained on the sources have little variance left, and LDA on them fails on a new domain.

        Args:
            feature: (batch, dim), held-out samples of the sources.
            label: (batch,), their classes.
        """
        self.lda_weight.zero_()
        if not self.head.pooled or self.white is None:
            return
        self.lda_scale.fill_(1.0)
        weight, bias = self.lda()
        logits = feature @ weight.T + bias
        scales = torch.logspace(-3, 1, 41).to(logits) / self.scale.square()
        losses = [cross_entropy(logits * scale, label) for scale in scales]
        self.lda_scale.copy_(scales[torch.stack(losses).argmin()])
        learned = log_mixture(self.classifier_logits(feature)).exp()
        share = mixture_weight(learned, (logits * self.lda_scale).softmax(-1), label)
        excess = share - 0.5 if share > 0.5 else 0.0
        self.lda_weight.fill_(round(2 * CLASSIFIER_WEIGHT * excess / (1 - excess)))

    def classifier_logits(self, feature: Tensor) -> Tensor:
        """Logits of the head's classifiers at the means of the latents, one per source or, for a pooled head,
        two: (batch, dim) -> (classifiers, sources, batch, classes)."""
        rows, centers = feature.expand(self.sources, *feature.shape), [self.centers]
        if self.head.pooled:
            centers.append(self.centers.mean(0).expand_as(self.centers))
        prior, posteriors = self.prior(rows), map(self.posterior, centers)
        latent = None if prior is None else prior.mean
        return torch.stack([self.head(rows, latent, None if q is None else q.mean) for q in posteriors])

    def batch_centers(self, feature: Tensor, label: Tensor) -> Tensor:
        """Class centres of the current batch; the stored centre where a class is missing from it."""
        centers, count = class_centers(feature, label, self.classes)
        return torch.where((count > 0).unsqueeze(-1), centers, self.centers)

    def pooled_centers(self, feature: Tensor, label: Tensor) -> Tensor:
        """Class centres of the batch pooled over all sources, repeated for each source."""
        centers, count = class_centers(feature.flatten(0, 1)[None], label.flatten()[None], self.classes)
        stored = self.centers.mean(0, keepdim=True)
        return torch.where((count > 0).unsqueeze(-1), centers, stored).expand_as(self.centers)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Create the optional buffers and modules that the state holds, then load as usual."""
        for name in ("white", "unwhite"):
            if prefix + name in state and getattr(self, name) is None:
                setattr(self, name, torch.zeros(self.dim, self.dim).to(self.scale))
        for name in ("amplitudes", "held_out"):
            if prefix + name in state and getattr(self, name) is None:
                setattr(self, name, torch.zeros_like(state[prefix + name], device=self.scale.device))
        inner = f"{prefix}feature_statistics."
        if self.feature_statistics is None and any(name.startswith(inner) for name in state):
            self.feature_statistics = FeatureStatistics.like(state, inner).to(self.scale.device)
        if self.distilled is None and f"{prefix}distilled.inner" in state:
            self.distilled = DistilledStep.like(state, f"{prefix}distilled.").to(self.scale.device)
        super()._load_from_state_dict(state, prefix, *rest)

    def prior(self, feature: Tensor) -> Gaussian | None:
        """p(z|x), or None without latent network."""
        return None if self.latent is None else self.latent(feature)

    def posterior(self, centers: Tensor) -> Gaussian | None:
        """q(z|d), the same network applied to class centres, or None without latent network."""
        return None if self.latent is None else self.latent(centers)


class Projected(nn.Module):
    """A backbone (or the identity) followed by a fixed projection, so that heads and energies stay small.

    Args:
        backbone: from inputs to (batch, wide); None when inputs are features already.
        projection: (wide, dim).
    """

    projection: Tensor

    def __init__(self, backbone: nn.Module | None, projection: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("projection", projection)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.project(inputs if self.backbone is None else self.backbone(inputs))

    def project(self, feature: Tensor) -> Tensor:
        """Project features: (batch, wide) -> (batch, dim)."""
        return stable_matmul(feature, self.projection)  # bfloat16 would lose precision
