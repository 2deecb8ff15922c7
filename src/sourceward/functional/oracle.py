"""Upper bounds that use the true labels: for analyses, never for results."""

import torch
from torch import Tensor

from sourceward.functional.losses import Gaussian


def oracle_latent(class_posterior: Gaussian, label: Tensor) -> Gaussian:
    """q(z|d) of the *true* class of each sample, in place of p(z|x).

    Args:
        class_posterior: of the class centres, (sources, classes, dim).
        label: (batch,) true classes.
    """
    return class_posterior.gather(label.expand(len(class_posterior.mean), -1))


def oracle_source(probability: Tensor, label: Tensor) -> Tensor:
    """The prediction of the source with the highest probability of each sample's *true* class.

    (sources, batch, classes) -> (batch, classes).
    """
    rows = torch.arange(len(label), device=label.device)
    best = probability[:, rows, label].argmax(0)
    return probability[best, rows]
