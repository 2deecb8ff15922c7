"""Domain generalization via entropy regularization (Zhao, Gong, Liu, Fu & Tao, NeurIPS 2020).

Features are made invariant given the class. Beside the classifier T, a discriminator D predicts the source,
and two sets of classifiers, T_i and T'_i, belong to one source i each. Loss, with F the backbone:

    cross-entropy of T
    + adversarial: cross-entropy of D, whose gradient reaches F reversed, times 0.1
    + entropy: cross-entropy of T'_i on source i, whose gradient reaches F reversed, times 0.001; it raises
      the entropy of the class given the features of source i
    + cross-entropy of T_i on source i without a gradient to F, and 0.05 times that of T_i, held fixed, on the
      other sources: F makes classifiers of one source right on the others.

Every class counts alike in the last two, whatever its share of the batch. D, T_i and T'_i have hidden layers
of 1024 and 256. All of it is as in the released code for PACS (sshan-zhao/DG_via_ER), but for its dropout in
these networks and its ten warm-up epochs, in which every loss counts 0.01.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, relu

from sourceward.nn import frozen_call
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Method, Rows
from sourceward.training.methods.gradients import reverse_gradient
from sourceward.training.needs import Needs

DOMAIN_WEIGHT, ENTROPY_WEIGHT, OTHERS_WEIGHT = 0.1, 0.001, 0.05
WIDTHS, GAIN = (1024, 256), 0.1
"""Hidden layers, and the gain of their Xavier initialisation."""


class Networks(nn.Module):
    """Several networks of three layers side by side: (batch, dim) to (count, batch, outputs)."""

    def __init__(self, dim: int, count: int, outputs: int) -> None:
        super().__init__()
        sizes = [*zip((dim, *WIDTHS), (*WIDTHS, outputs))]
        bounds = (GAIN * (6 / (before + after)) ** 0.5 for before, after in sizes)
        self.weights = nn.ParameterList(
            torch.empty(count, *size).uniform_(-bound, bound) for size, bound in zip(sizes, bounds)
        )
        self.biases = nn.ParameterList(torch.zeros(count, 1, after) for _, after in sizes)

    def forward(self, feature: Tensor) -> Tensor:
        hidden = feature.expand(len(self.weights[0]), *feature.shape)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            hidden = (relu(hidden) if number else hidden) @ weight + bias
        return hidden


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
        self.sources, self.discriminator = sources, Networks(backbone.dim, 1, sources)
        self.own, self.entropy = (Networks(backbone.dim, sources, classes) for _ in range(2))

    def loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        label, domain, feature = batch.label, batch.domain, backbone(batch.inputs)
        task = cross_entropy(head(feature), label, label_smoothing=self.settings.label_smoothing)
        adversarial = cross_entropy(self.discriminator(reverse_gradient(feature, DOMAIN_WEIGHT))[0], domain)
        sources = torch.arange(self.sources, device=domain.device)
        own = domain == sources.unsqueeze(1)
        entropy = self.entropy(reverse_gradient(feature, ENTROPY_WEIGHT))
        classifiers = balanced_cross_entropy(self.own(feature.detach()), label, own)
        others = balanced_cross_entropy(frozen_call(self.own, feature), label, ~own)
        conditional = balanced_cross_entropy(entropy, label, own) + classifiers + OTHERS_WEIGHT * others
        return task + adversarial + conditional
