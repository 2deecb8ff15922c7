"""z of a test sample: from p(z|x), or the posterior of the class that its unmoved self is voted into.

The energies walk toward the class that z speaks of, and with the true class's posterior (`oracle`) they walk
well. Without a label, the vote before anything moves names a class; a long walk then keeps the vote instead
of drifting away from it.
"""

from collections.abc import Sequence

from torch import Tensor

from sourceward.functional import AGGREGATIONS, Gaussian, energy_zscore, keyed_normal
from sourceward.functional.aggregation import only
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


def class_latent(
    fold: Folded, start: Tensor, latent: Tensor, sources: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """z as each source's posterior of the class voted for, (sources, rows, dim), and the energies that weigh
    the vote, (sources, rows).

    Args:
        fold: a network with latents.
        start: (sources, rows, dim), unmoved.
        latent: (sources, rows, dim), the z that energies are calibrated with.
        sources: those that vote; all when None.
    """
    assert fold.class_latent is not None
    energy = fold.energy.energy(fold.energy.first(start, fold.energy.bias(latent)))
    votes = [fold.classify(start, latent), energy_zscore(energy, fold.own_energy)]
    answer, unlike = votes if sources is None else only(sources, *votes)
    best = AGGREGATIONS["energy"](answer, unlike, unlike).argmax(-1)
    return fold.class_latent[:, best].contiguous(), energy
