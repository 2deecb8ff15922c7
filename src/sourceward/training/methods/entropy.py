"""Domain generalization via entropy regularization (Zhao, Gong, Liu, Fu & Tao, NeurIPS 2020).

Features are made invariant given the class. Beside the classifier T, a discriminator D predicts the source,
and two sets of classifiers, T_i and T'_i, belong to one source i each. Loss, with F the backbone:

    cross-entropy of T
    + adversarial: cross-entropy of D, whose gradient reaches F reversed, times 0.1
    + entropy: cross-entropy of T'_i on source i, whose gradient reaches F reversed, times 0.001; it raises
      the entropy of the class given the features of source i
    + cross-entropy of T_i on source i without a gradient to F, and 0.05 times that of T_i, held fixed, on the
      other sources: F makes classifiers of one source right on the others.

Every class counts alike in the last two, whatever its share of the batch. Weights are those of the released
code for PACS; its warm-up epochs are left out.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Method
from sourceward.training.methods.gradients import reverse_gradient
from sourceward.training.needs import Needs

DOMAIN_WEIGHT, ENTROPY_WEIGHT, OTHERS_WEIGHT = 0.1, 0.001, 0.05
WIDTH = 1024
"""Hidden width of the discriminator, as in the released code."""


class SourceClassifiers(nn.Module):
    """A linear classifier for each source: (batch, dim) to (sources, batch, classes)."""

    def __init__(self, dim: int, sources: int, classes: int) -> None:
        super().__init__()
        bound = dim**-0.5
        self.weight = nn.Parameter(torch.empty(sources, dim, classes).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(sources, 1, classes))

    def forward(self, feature: Tensor, fixed: bool = False) -> Tensor:
        weight, bias = (self.weight.detach(), self.bias.detach()) if fixed else (self.weight, self.bias)
        return feature @ weight + bias


def balanced_cross_entropy(logits: Tensor, label: Tensor, member: Tensor) -> Tensor:
    """Return the cross-entropy of each source's classifier on its rows, each class alike; then their mean.

    Args:
        logits: (sources, batch, classes).
        label: (batch,).
        member: (sources, batch) whether a row counts for a source's classifier.
    """
    sources, _, classes = logits.shape
    losses = cross_entropy(logits.mT, label.expand(sources, -1), reduction="none")
    rows = one_hot(label, classes).to(losses) * member.unsqueeze(-1)  # (sources, batch, classes)
    count = rows.sum(1)
    by_class = (rows * losses.unsqueeze(-1)).sum(1) / count.clamp_min(1)
    return (by_class.sum(1) / (count > 0).sum(1).clamp_min(1)).mean()


@FINETUNE_METHODS.register("entropy")
class EntropyRegularization(Method):
    """Entropy regularization: adversarial features whose class-conditional distributions agree."""

    needs = Needs(sources=2, networks="a domain discriminator and two classifiers of each source")

    def __init__(self, settings: FineTuneSettings, backbone: Any, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        self.discriminator = nn.Sequential(
            nn.Linear(backbone.dim, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, sources),
        )  # fmt: skip
        self.own = SourceClassifiers(backbone.dim, sources, classes)
        self.entropy = SourceClassifiers(backbone.dim, sources, classes)

    def loss(
        self,
        backbone: nn.Module,
        head: nn.Module,
        inputs: Any,
        label: Tensor,
        domain: Tensor,
        generator: Generator,
    ) -> Tensor:
        feature = backbone(inputs)
        task = cross_entropy(head(feature), label, label_smoothing=self.settings.label_smoothing)
        adversarial = cross_entropy(self.discriminator(reverse_gradient(feature, DOMAIN_WEIGHT)), domain)
        sources = torch.arange(len(self.own.weight), device=domain.device)
        own = domain == sources.unsqueeze(1)
        entropy = self.entropy(reverse_gradient(feature, ENTROPY_WEIGHT))
        classifiers = balanced_cross_entropy(self.own(feature.detach()), label, own)
        others = balanced_cross_entropy(self.own(feature, fixed=True), label, ~own)
        conditional = balanced_cross_entropy(entropy, label, own) + classifiers + OTHERS_WEIGHT * others
        return task + adversarial + conditional
