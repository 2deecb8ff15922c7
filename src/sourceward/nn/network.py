"""`Network`: everything that is learned, in one module."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.functional import (
    LEVELS,
    Gaussian,
    class_centers,
    energy,
    latent_bias,
    mixing_share,
    own_quantiles,
    whitening,
)
from sourceward.functional.rows import times
from sourceward.functional.voting import log_vote
from sourceward.nn.distilled import DistilledStep
from sourceward.nn.energy import StackedEnergy
from sourceward.nn.feature_statistics import FeatureStatistics
from sourceward.nn.heads import HEADS, Head
from sourceward.nn.latent import LatentNet
from sourceward.nn.projection import Projected

CALIBRATION_ROWS = 4096
"""As many samples tell a distribution."""

VOICES = 8
"""Of each learned classifier of a pooled head: a whole number of them then says how much another counts."""


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
    own_energy: Tensor
    sharpness: Tensor
    lda_weight: Tensor
    latent: LatentNet | None
    distilled: DistilledStep | None
    white: Tensor | None
    unwhite: Tensor | None
    amplitudes: Tensor | None
    """(sources, 3, height, width // 2 + 1): mean amplitude spectra of the sources' images."""
    feature_statistics: FeatureStatistics | None
    """Of the backbone's early maps of the sources' images."""

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
        self.head: Head = HEADS[head](dim, classes)
        self.latent = LatentNet(dim) if self.head.uses_latent else None
        self.energy = StackedEnergy(sources, dim, hidden, latent=self.head.uses_latent, dropout=dropout)
        self.distilled = None  # distilled from the trained energies, where it is asked for
        self.feature_statistics, self.moved = None, False
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("white", None)
        self.register_buffer("unwhite", None)
        self.register_buffer("amplitudes", None)
        self.register_buffer("centers", torch.zeros(sources, classes, dim))
        self.register_buffer("own_energy", LEVELS.repeat(sources, 1))
        self.register_buffer("sharpness", torch.zeros(()))
        self.register_buffer("lda_weight", torch.zeros((), dtype=torch.long))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise everything but the backbone: uniform in +-1/sqrt(inputs), as `nn.Linear`."""
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

    @contextmanager
    def toward(self, source: int) -> Iterator[None]:
        """While this lasts, the backbone sees images with the feature_statistics of a source."""
        inner = self.backbone.backbone if isinstance(self.backbone, Projected) else self.backbone
        assert self.feature_statistics is not None
        assert inner is not None
        with self.feature_statistics.toward(inner, source):
            self.moved = True  # what was recorded of the backbone does not hold
            try:
                yield
            finally:
                self.moved = False

    def rescale(self, raw: Tensor) -> Tensor:
        """The backbone's features in the units of everything that follows."""
        centred = raw - self.shift
        return (centred if self.white is None else times(centred, self.white)) * self.scale

    def raw(self, feature: Tensor) -> Tensor:
        """Back to the units of the backbone: the inverse of `rescale`."""
        feature = feature / self.scale
        return (feature if self.unwhite is None else times(feature, self.unwhite)) + self.shift

    @torch.no_grad()
    def fit_scale(self, raw: Tensor, covariance: Tensor | None = None) -> None:
        """Centre source features and bring their mean norm to sqrt(dim), from (batch, dim) raw features.

        One step size then serves every backbone, and a head without bias loses nothing to a common offset.
        Where a covariance is given, they are whitened by it: see `functional.whitening`.
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
        """Give a source that lacks a class the mean centre of the sources that have it."""
        has = self.centers.abs().sum(-1, keepdim=True) > 0
        mean = self.centers.sum(0) / has.sum(0).clamp_min(1)
        self.centers.copy_(torch.where(has, self.centers, mean))

    @torch.no_grad()
    def fit_calibration(self, source: int, feature: Tensor) -> None:
        """Store how the energy of one source is distributed over (batch, dim) samples of its own."""
        feature = feature[:CALIBRATION_ROWS]
        rows = feature.expand(self.sources, -1, -1)
        prior, weights = self.prior(rows), self.energy.weights()
        bias = latent_bias(weights, None if prior is None else prior.mean)
        self.own_energy[source] = own_quantiles(energy(weights, rows, bias)[source])

    def lda(self) -> tuple[Tensor, Tensor]:
        """Linear lda analysis in closed form: logits = x . weight_c + bias_c.

        In whitened features the nearest class centre of all sources together is its answer.
        """
        center = self.centers.mean(0)
        return self.sharpness * center, -0.5 * self.sharpness * center.square().sum(-1)

    @torch.no_grad()
    def fit_lda(self, feature: Tensor, label: Tensor) -> None:
        """How sure the lda may be, and how much of the vote it has.

        As much as its share in the mixture with what is learned that explains unseen samples best is above
        one half: none where it explains them no better. Features of a backbone that was trained on the
        sources hardly spread any more, and it is wrong about those of a new domain.

        Args:
            feature: (batch, dim), samples of the sources that nothing was trained on.
            label: (batch,), their classes.
        """
        self.lda_weight.zero_()
        if not self.head.pooled or self.white is None:
            return
        self.sharpness.fill_(1.0)
        weight, bias = self.lda()
        logits = feature @ weight.T + bias
        tried = torch.logspace(-3, 1, 41).to(logits) / self.scale.square()
        losses = [cross_entropy(logits * value, label) for value in tried]
        self.sharpness.copy_(tried[torch.stack(losses).argmin()])
        learned, own = log_vote(self.voter_logits(feature)).exp(), (logits * self.sharpness).softmax(-1)
        share = mixing_share(learned, own, label)
        say = share - 0.5 if share > 0.5 else 0.0
        self.lda_weight.fill_(round(2 * VOICES * say / (1 - say)))

    def voter_logits(self, feature: Tensor) -> Tensor:
        """What the head's classifiers say at the means of the latents, one or, pooled, two of each source:
        (batch, dim) to (voters, sources, batch, classes)."""
        rows, voters = feature.expand(self.sources, *feature.shape), [self.centers]
        if self.head.pooled:
            voters.append(self.centers.mean(0).expand_as(self.centers))
        prior, posteriors = self.prior(rows), map(self.posterior, voters)
        latent = None if prior is None else prior.mean
        return torch.stack([self.head(rows, latent, None if q is None else q.mean) for q in posteriors])

    def batch_centers(self, feature: Tensor, label: Tensor) -> Tensor:
        """Class centres of the current batch; the stored centre where a class is missing from it."""
        centers, count = class_centers(feature, label, self.classes)
        return torch.where((count > 0).unsqueeze(-1), centers, self.centers)

    def pooled_centers(self, feature: Tensor, label: Tensor) -> Tensor:
        """Class centres of the batch over all sources together, repeated for each source."""
        centers, count = class_centers(feature.flatten(0, 1)[None], label.flatten()[None], self.classes)
        stored = self.centers.mean(0, keepdim=True)
        return torch.where((count > 0).unsqueeze(-1), centers, stored).expand_as(self.centers)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Create the optional buffers and modules that the state holds, then load as usual."""
        for name in ("white", "unwhite"):
            if prefix + name in state and getattr(self, name) is None:
                setattr(self, name, torch.zeros(self.dim, self.dim).to(self.scale))
        if self.amplitudes is None and f"{prefix}amplitudes" in state:
            self.amplitudes = torch.zeros_like(state[f"{prefix}amplitudes"], device=self.scale.device)
        if self.feature_statistics is None and any(
            name.startswith(f"{prefix}feature_statistics.") for name in state
        ):
            self.feature_statistics = FeatureStatistics.like(state, f"{prefix}feature_statistics.").to(
                self.scale.device
            )
        if self.distilled is None and f"{prefix}distilled.inner" in state:
            self.distilled = DistilledStep.like(state, f"{prefix}distilled.").to(self.scale.device)
        super()._load_from_state_dict(state, prefix, *rest)

    def prior(self, feature: Tensor) -> Gaussian | None:
        """p(z|x)."""
        return None if self.latent is None else self.latent(feature)

    def posterior(self, centers: Tensor) -> Gaussian | None:
        """q(z|d): the same network, fed class centres."""
        return None if self.latent is None else self.latent(centers)
