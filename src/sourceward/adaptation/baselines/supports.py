"""Support sets: the surest test features of each class, as T3A and TSD keep them."""

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from sourceward.adaptation.baselines.classifier import class_weights, entropy, log_vote, voter_logits
from sourceward.nn import Network


class Supports:
    """Features with the class and the entropy that the unadapted classifier gave them.

    They start with the classifier's own weight vectors. Of each class the `keep` surest stay.

    Args:
        network: whose classifier labels what is added.
        keep: supports of each class (M in T3A); 0 keeps all.
    """

    def __init__(self, network: Network, keep: int) -> None:
        self.keep, self.classes = keep, network.classes
        self.feature = torch.zeros(0, network.dim).to(network.scale)
        self.label = torch.zeros(0, dtype=torch.long, device=network.scale.device)
        self.entropy = torch.zeros(0).to(network.scale)
        weights = class_weights(network).to(network.scale)
        with torch.no_grad():
            self.add(weights, log_vote(voter_logits(network, weights)))

    @torch.no_grad()
    def add(self, feature: Tensor, log_probability: Tensor) -> None:
        """Join features with their answers, and let the least sure go."""
        self.feature = torch.cat([self.feature, feature.detach()])
        self.label = torch.cat([self.label, log_probability.argmax(-1)])
        self.entropy = torch.cat([self.entropy, entropy(log_probability.detach())])
        if self.keep:
            kept = surest(self.entropy, self.label, self.classes, self.keep)
            self.feature, self.label, self.entropy = self.feature[kept], self.label[kept], self.entropy[kept]

    def prototypes(self) -> Tensor:
        """The direction of each class: the normalised sum of its normalised supports, (classes, dim)."""
        member = one_hot(self.label, self.classes).to(self.feature.dtype)
        return normalize(member.T @ normalize(self.feature, dim=1), dim=1)


def surest(entropy: Tensor, label: Tensor, classes: int, keep: int) -> Tensor:
    """Rows among the `keep` of least entropy in their class; the earlier one where two are alike.

    >>> surest(torch.tensor([0.3, 0.1, 0.2, 0.9]), torch.tensor([0, 0, 0, 1]), 2, 2).tolist()
    [1, 2, 3]
    """
    order = entropy.argsort(stable=True)
    rank = one_hot(label[order], classes).cumsum(0).gather(1, label[order, None])[:, 0]
    return order[rank <= keep].sort().values
