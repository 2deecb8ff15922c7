"""MASF: model-agnostic learning of semantic features (Dou, Castro, Kamnitsas & Glocker, NeurIPS 2019).

In each iteration one random source is the meta-test domain, the others are meta-train domains. The task loss
is the cross-entropy on meta-train. One gradient step on it gives new weights of backbone and classifier, with
which two more losses are taken, on all domains:

    global: the symmetrised KL between the class-averaged soft labels softmax(logits of the mean feature / 2)
            of the meta-test domain and of each meta-train domain; a class that one of them lacks counts 0;
    local:  the triplet loss with semi-hard negatives of a metric network's embeddings, margin 10, on a third
            of the batch.

Loss: task + 1.0 global + 0.005 local. As in the released code (biomedia-mira/masf), the new weights' gradient
with respect to the old ones is taken to first order, and the gradient of the inner step is clipped to norm 2
for each tensor. There the task loss and the other two have an Adam optimizer each, with clipped gradients,
and the metric network a rate of its own; here one optimizer minimises their sum.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu, linear

from sourceward._util.graphs import each
from sourceward.functional import class_centers
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Method, Rows
from sourceward.training.methods.gradients import call_with, plain
from sourceward.training.methods.random_draws import permutation
from sourceward.training.needs import Needs

INNER_RATE, CLIP, MARGIN = 1e-5, 2.0, 10.0
GLOBAL_WEIGHT, LOCAL_WEIGHT, TEMPERATURE = 1.0, 0.005, 2.0
METRIC = (1024, 256)
"""Inner step, clipping, margin, weights of the losses, temperature and widths of the metric network: those of
the released code for PACS."""


def soft_confusion(logits: Tensor, present: Tensor) -> Tensor:
    """Return the global loss of the last domain against each other one.

    Args:
        logits: (domains, classes, classes) of each class's mean feature.
        present: (domains, classes) whether a domain has samples of a class.
    """
    log_p = (logits.float() / TEMPERATURE).log_softmax(-1)
    difference = log_p[:-1] - log_p[-1]
    divergence = 0.5 * (difference * (log_p[:-1].exp() - log_p[-1].exp())).sum(-1)  # KL both ways, halved
    return (divergence * (present[:-1] & present[-1])).mean()


def semi_hard_triplet(embedding: Tensor, label: Tensor, margin: float = MARGIN) -> Tensor:
    """Return the triplet loss with semi-hard negatives (Schroff et al., CVPR 2015).

    For each pair of one class, the negative is the nearest that is farther than the positive, or the farthest
    where none is. Distances are squared.
    """
    distance = (embedding.unsqueeze(1) - embedding.unsqueeze(0)).square().sum(-1)
    same = label.unsqueeze(1) == label.unsqueeze(0)
    other = distance.detach()
    farther = (other.unsqueeze(1) > other.unsqueeze(2)) & ~same.unsqueeze(1)  # anchor, positive, negative
    large = torch.finfo(distance.dtype).max
    nearest = torch.where(farther, distance.unsqueeze(1), large).min(-1).values
    farthest = torch.where(same, -1.0, distance).max(-1).values.unsqueeze(1)
    negative = torch.where(farther.any(-1), nearest, farthest)
    pairs = same & ~torch.eye(len(label), dtype=torch.bool, device=label.device) & (~same).any(-1, True)
    loss = (margin + distance - negative).clamp_min(0)
    return torch.where(pairs, loss, 0.0).sum() / pairs.sum().clamp_min(1)


@FINETUNE_METHODS.register("masf")
class MASF(Method):
    """MASF: episodes of meta-train and meta-test sources; aligned soft labels, compact classes."""

    needs = Needs(sources=2, networks="a metric network")

    def __init__(self, settings: FineTuneSettings, backbone: Any, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        self.sources, self.classes = sources, classes
        self.hidden, self.out = nn.Linear(backbone.dim, METRIC[0]), nn.Linear(*METRIC)

    def loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        order = permutation(self.sources, generator)  # the last one is the meta-test domain

        def shuffled(rows: Tensor) -> Tensor:
            return rows.unflatten(0, (self.sources, -1))[order].flatten(0, 1)

        inputs, label = each(shuffled, batch.inputs), shuffled(batch.label)
        train = len(label) // self.sources * (self.sources - 1)
        smoothing = self.settings.label_smoothing
        logits = head(backbone(each(lambda rows: rows[:train], inputs)))
        task = cross_entropy(logits, label[:train], label_smoothing=smoothing)
        weights, own = self._stepped(task, backbone, head)
        feature = call_with(backbone, weights, inputs)
        member = feature.unflatten(0, (self.sources, -1)), label.unflatten(0, (self.sources, -1))
        centers, count = class_centers(*member, self.classes)
        aligned = soft_confusion(linear(centers, own["weight"], own["bias"]), count > 0)
        some, of = (part[:, : -(-part.shape[1] // 3)].flatten(0, 1) for part in member)
        embedding = leaky_relu(self.out(leaky_relu(self.hidden(some), 0.2)), 0.2).float()
        return task + GLOBAL_WEIGHT * aligned + LOCAL_WEIGHT * semi_hard_triplet(embedding, of)

    def _stepped(
        self, task: Tensor, backbone: nn.Module, head: nn.Module
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weights of backbone and head after one step of gradient descent on the task loss."""
        names = [dict(plain(part).named_parameters()) for part in (backbone, head)]
        weights = [weight for part in names for weight in part.values() if weight.requires_grad]
        found = torch.autograd.grad(task, weights, retain_graph=True, allow_unused=True)
        step = {id(w): _clipped(g) for w, g in zip(weights, found) if g is not None}

        def moved(weight: Tensor) -> Tensor:
            return weight - INNER_RATE * step[id(weight)] if id(weight) in step else weight

        first, second = ({name: moved(weight) for name, weight in part.items()} for part in names)
        return first, second


def _clipped(gradient: Tensor) -> Tensor:
    """Return a gradient of norm `CLIP` at most."""
    return gradient * (CLIP / gradient.norm().clamp_min(CLIP))
