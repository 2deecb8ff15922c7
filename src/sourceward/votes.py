"""From each source's answer to one: who votes, and how much each vote counts."""

from collections.abc import Sequence

from torch import Tensor

from sourceward.functional import AGGREGATIONS, cosine_to_sources, energy_zscore
from sourceward.functional.aggregation import least_surprised, only
from sourceward.functional.source_weights import evidence, score
from sourceward.nn import Folded
from sourceward.settings import AdaptSettings

WITHOUT_COSINE = ("mean", "confident", "energy")
"""Aggregations that do not ask how near a sample is to a source."""

WITHOUT_SURPRISE = ("mean", "confident", "closest", "cosine")
"""Aggregations that do not ask how surprised an energy is."""


def cast_votes(
    fold: Folded,
    feature: Tensor,
    per_source: Tensor,
    energies: tuple[Tensor, Tensor, Tensor],
    settings: AdaptSettings,
    sources: Sequence[int] | None = None,
) -> Tensor:
    """The vote of the sources: (batch, classes).

    Args:
        fold: the network.
        feature: (batch, dim), unmoved.
        per_source: (sources, batch, classes).
        energies: (sources, batch) each: of the unmoved sample with the z that energies are calibrated with,
            and before and after the walk with the z of the walk.
        settings: of test time.
        sources: those that vote; all when None.
    """
    name, similarity, unmoved = settings.aggregation, energies[0], energies[0]  # what nobody asks for
    if name not in WITHOUT_COSINE or settings.source_weights is not None:
        similarity = cosine_to_sources(feature, fold.source_center)
    if name not in WITHOUT_SURPRISE or settings.top is not None:
        unmoved = energy_zscore(energies[0], fold.own_energy)
    votes = [per_source, similarity, unmoved]
    if settings.source_weights is not None:
        before, after = (energy_zscore(energy, fold.own_energy) for energy in energies[1:])
        votes.append(score(evidence(per_source, votes[1], before, after), settings.source_weights))
    if sources is not None:
        votes = only(sources, *votes)
    if settings.top is not None:
        votes = least_surprised(settings.top, votes[2], *votes)
    return AGGREGATIONS[name](*votes)
