"""The training of single-sample generalization (Xiao, Zhen, Shao & Snoek, ICLR 2022).

Each source t in turn is the target, the others are sources. The weights of a classifier have a prior that
reads the class centres d_s of the sources and one sample x, and a posterior that reads the target's class
centres d_t. Loss, the mean over t:

    E_q [-log p(y|x, w)] + E_p [-log p(y|x, w)] + 0.001 / dim KL(q(w|d_t) || p(w|d_s, x)).

The second term, the classifier that test samples use, is supervised in the released code
(zzzx1224/SingleSampleGeneralization-ICLR2022) as well; its KL is the other way round, KL(p || q). The adapter
`generated_classifier` classifies a sample by the prior's mean, with the class centres of all sources.

The prior reads a sample by the channel means of the four stages of its maps, as the released code does. KL
weight: its 1e-5 of a sum over a batch of 128, divided by dim: our logits are divided by sqrt(dim), so that
weights for the same logits are sqrt(dim) times as long, and their KL dim times as large; undivided, the
cheapest way to lower it is to shrink all features. Our choices: one draw of the weights for 10, a standard
deviation of 0.1 or more, class centres of the batch for those of ten more images of each class, and all
sources as the target in each iteration. The linear head reads features without a gradient: source validation
selects by it.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.functional import Gaussian, kl_divergence
from sourceward.nn.auxiliary import SINGLE_SAMPLE, GeneratedClassifier, classify
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Method, Rows
from sourceward.training.methods.gradients import plain
from sourceward.training.needs import Needs

KL_WEIGHT = 1e-3


def held_out_loss(
    network: GeneratedClassifier,
    feature: Tensor,
    domain: Tensor,
    label: Tensor,
    centers: Tensor,
    target: int,
    generator: Generator,
) -> Tensor:
    """Return the loss with one source as the target.

    Args:
        network: that generates classifiers.
        feature, domain: (batch, dim) features and domain descriptions of that source's samples.
        label: (batch,).
        centers: (sources, classes, dim).
        target: its number.
        generator: of the draws.
    """
    others = torch.cat([centers[:target], centers[target + 1 :]]).mean(0)
    posterior, prior = network.posterior(centers[target]), network.prior(others, domain, generator)
    fits = cross_entropy(classify(feature, posterior.sample(generator)), label)
    fits = fits + cross_entropy(classify(feature, prior.sample(generator)), label)
    wide = Gaussian(*(part.expand_as(prior.mean) for part in posterior))
    return fits + KL_WEIGHT / feature.shape[1] * kl_divergence(wide, prior).sum(-1).mean()


@FINETUNE_METHODS.register("single_sample")
class SingleSample(Method):
    """Single-sample generalization: classifiers generated from one sample, learned on held-out sources."""

    needs = Needs(sources=2, networks="a classifier generator", adapter="generated_classifier")

    def __init__(self, settings: FineTuneSettings, backbone: Any, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        self.sources = sources
        backbone.add_auxiliary(SINGLE_SAMPLE, sources, classes)

    def loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        network: GeneratedClassifier = backbone.auxiliary[SINGLE_SAMPLE]
        feature, described = network.describe(plain(backbone), batch.inputs)
        probe = cross_entropy(head(feature.detach()), batch.label)
        with torch.autocast(feature.device.type, enabled=False):  # variances need all digits
            parts = (feature.float(), described.float(), batch.label)
            rows, about, labels = (part.unflatten(0, (self.sources, -1)) for part in parts)
            centers = network.batch_centers(rows, labels)
            losses = [
                held_out_loss(network, rows[t], about[t], labels[t], centers, t, generator)
                for t in range(self.sources)
            ]
        return torch.stack(losses).mean() + probe
