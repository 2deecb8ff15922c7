"""The support set of T3A and TSD: the test features of each class with the lowest entropy."""

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from sourceward.adaptation.baselines.classifier import class_weights, ensemble_logits, entropy
from sourceward.functional.aggregation import log_mixture
from sourceward.nn import Network


class SupportSet:
    """Features with the class and the entropy of their predictions, initially the classifier's class weights.

    Args:
        network: whose classifier the set starts from.
        keep: features kept of each class, those of lowest entropy (M in T3A); 0 keeps all.
    """

    def __init__(self, network: Network, keep: int) -> None:
        self.keep, self.classes = keep, network.classes
        self.feature = torch.zeros(0, network.dim).to(network.scale)
        self.label = torch.zeros(0, dtype=torch.long, device=network.scale.device)
        self.entropy = torch.zeros(0).to(network.scale)
        weights = class_weights(network).to(network.scale)
        with torch.no_grad():
            self.add(weights, log_mixture(ensemble_logits(network, weights)))

    @torch.no_grad()
    def add(self, feature: Tensor, log_probability: Tensor) -> None:
        """Add features (batch, dim) with their predictions (batch, classes), then drop the least certain."""
        self.feature = torch.cat([self.feature, feature.detach()])
        self.label = torch.cat([self.label, log_probability.argmax(-1)])
        self.entropy = torch.cat([self.entropy, entropy(log_probability.detach())])
        if self.keep:
            kept = lowest_entropy(self.entropy, self.label, self.classes, self.keep)
            self.feature, self.label, self.entropy = self.feature[kept], self.label[kept], self.entropy[kept]

    def prototypes(self) -> Tensor:
        """Return the unit vector along the sum of each class's normalised features: (classes, dim)."""
        member = one_hot(self.label, self.classes).to(self.feature.dtype)
        return normalize(member.T @ normalize(self.feature, dim=1), dim=1)


def lowest_entropy(entropy: Tensor, label: Tensor, classes: int, keep: int) -> Tensor:
    """Return the rows among the `keep` of lowest entropy in their class; the earlier one of a tie.

    >>> lowest_entropy(torch.tensor([0.3, 0.1, 0.2, 0.9]), torch.tensor([0, 0, 0, 1]), 2, 2).tolist()
    [1, 2, 3]
    """
    order = entropy.argsort(stable=True)
    rank = one_hot(label[order], classes).cumsum(0).gather(1, label[order, None])[:, 0]
    return order[rank <= keep].sort().values
