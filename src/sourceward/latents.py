"""z of a test sample: drawn from p(z|x), or made of the posteriors of the classes it may belong to.

The energies walk toward the class that z speaks of, and with the true class's posterior (`oracle`) they walk
well. What comes nearest to it without a label are the class posteriors, weighed by what the sources say of
the sample before it moves.
"""

from torch import Tensor
from torch.nn.functional import one_hot

from sourceward.functional import AGGREGATIONS, Gaussian, keyed_normal
from sourceward.functional.rows import matmul
from sourceward.nn import Folded
from sourceward.settings import AdaptSettings


def keyed_latent(
    fold: Folded, feature: Tensor, latent: Gaussian | None, keys: Tensor, settings: AdaptSettings
) -> Tensor | None:
    """z of each sample and draw from p(z|x), or its mean without draws: (sources, draws x batch, dim).

    Args:
        fold: the network.
        feature: (batch, dim).
        latent: replaces p(z|x).
        keys: (batch,), the samples' own randomness.
        settings: of test time.
    """
    if fold.latent is None:
        return None
    if latent is None and not settings.num_draws:
        return fold.prior_mean(feature).expand(len(fold.source_center), -1, -1)
    mean, std = latent or fold.latent(feature)
    if settings.num_draws:
        eps = keyed_normal(keys, -2, mean.shape[-1], mean.dtype, settings.num_draws)
        mean = (mean.unsqueeze(-3) + std.unsqueeze(-3) * eps).flatten(-3, -2)
    return mean.expand(len(fold.source_center), -1, -1)


def class_latent(fold: Folded, probability: Tensor, surprise: Tensor, kind: str) -> Tensor:
    """z from each source's class posteriors: (sources, rows, dim).

    Args:
        fold: a network with latents.
        probability: (sources, rows, classes), each source's answer for the unmoved sample.
        surprise: (sources, rows), of each source's energy by it.
        kind: `classes` weighs the posteriors by the vote, `class` takes that of the vote's best class.
    """
    assert fold.class_latent is not None
    vote = AGGREGATIONS["energy"](probability, surprise, surprise)
    if kind == "class":
        vote = one_hot(vote.argmax(-1), vote.shape[-1]).to(vote.dtype)
    return matmul(vote.expand(len(surprise), -1, -1), fold.class_latent.contiguous())
