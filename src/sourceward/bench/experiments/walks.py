"""One walk, and what every choice of test time makes of it: its length, who votes and how."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sourceward.algorithm import adapt
from sourceward.functional import AGGREGATIONS, cosine_to_sources, energy_zscore, row_keys
from sourceward.functional.aggregation import least_surprised
from sourceward.functional.source_weights import Evidence, evidence, score
from sourceward.latents import keyed_latent
from sourceward.nn import Network, folded
from sourceward.settings import AdaptSettings

BLOCK = 512
"""Rows walked together."""


@dataclass(frozen=True)
class Walk:
    """Each source's answers (sources, rows, classes) and zscore (sources, rows) after some steps."""

    answers: dict[int, Tensor]
    surprises: dict[int, Tensor]
    similarity: Tensor

    def vote(
        self,
        steps: int,
        how: str = "energy",
        top: int | None = None,
        source_weights: tuple[float, ...] | None = None,
        blend: float = 0.0,
        before: Tensor | None = None,
    ) -> Tensor:
        """The answer (rows, classes) as `algorithm.adapt` gives it."""
        answer = self.answers[steps].lerp(self.answers[0], blend) if blend else self.answers[steps]
        votes = [answer, self.similarity, self.surprises[0] if before is None else before]
        if source_weights is not None:
            votes.append(score(self.evidence(steps), source_weights))
        if top is not None:
            votes = least_surprised(top, votes[2], *votes)
        return AGGREGATIONS[how](*votes)

    def evidence(self, steps: int) -> Tensor:
        return evidence(self.answers[steps], self.similarity, self.surprises[0], self.surprises[steps])

    def taught(self, steps: int, label: Tensor) -> Evidence:
        """What votes can be learned from."""
        return Evidence(self.evidence(steps), self.answers[steps], label)


@torch.no_grad()
def walk_all(network: Network, feature: Tensor, settings: AdaptSettings, lengths: tuple[int, ...]) -> Walk:
    """Walk once, as far as the longest of the lengths, and look at every one of them."""
    fold, parts = folded(network.eval()), []
    settings = replace(settings.untaught_votes(), num_steps=max(lengths), num_draws=0, stop=None, top=None)
    for rows in feature.split(BLOCK):
        keys = row_keys(rows, settings.seed)
        chain = adapt(network, rows, keys, settings, record=True).chain
        latent = keyed_latent(fold, rows, None, keys, settings)
        assert chain.trajectory is not None
        assert chain.energies is not None
        parts.append(
            {
                k: (
                    fold.classify(chain.trajectory[k], latent),
                    energy_zscore(chain.energies[k], fold.energy_quantiles),
                )
                for k in {0, *lengths}
            }
        )
    answers, surprises = (
        {k: torch.cat([part[k][which] for part in parts], 1) for k in parts[0]} for which in (0, 1)
    )
    return Walk(answers, surprises, cosine_to_sources(feature, fold.source_center))
