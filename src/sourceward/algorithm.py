"""Algorithm 1 of the paper, top to bottom: the training objective, then inference at test time.

Xiao, Zhen, Liao & Snoek, "Energy-Based Test Sample Adaptation for Domain Generalization", ICLR 2023.
x is a feature, z its latent, d a class centre, E^i the energy of source i. Sources are the leading axis of
every tensor, so one call serves all of them. The equations themselves are in `functional.losses` (7, 10),
which also draws the negatives, and in `samplers.langevin` (2).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sourceward.functional import (
    AGGREGATIONS,
    ChainWeights,
    Coefficients,
    EnergyWeights,
    Gaussian,
    Guided,
    Loss,
    Positive,
    cosine_to_sources,
    energy,
    energy_zscore,
    eq7,
    eq10,
    guided_step,
    keyed_normal,
    latent_bias,
)
from sourceward.functional.aggregation import evidence, score, select_sources
from sourceward.functional.losses import Batch, detach, draw, jitter, join, negatives
from sourceward.nn import Folded, Network, ReplayBuffer, folded, frozen_call
from sourceward.samplers import Chain, run_chain
from sourceward.settings import AdaptSettings, TrainSettings


class Latents(NamedTuple):
    """p(z|x) of the samples, q(z|d) of the class centres and of each sample's class; None without latent."""

    prior: Gaussian | None
    class_posterior: Gaussian | None
    posterior: Gaussian | None


def objective(
    network: Network,
    replay: ReplayBuffer,
    batch: Batch,
    settings: TrainSettings,
    coefficients: Coefficients,
    generator: torch.Generator | None = None,
) -> Loss:
    """One iteration of Algorithm 1 for all sources: the loss of eq. 10, or eq. 7 without latent."""
    feature, label = jitter(batch.feature, settings.feature_noise, generator), batch.label

    # Latents: prior p(z|x), and posterior q(z|d) of every class centre of the batch.
    prior = network.prior(feature)
    class_posterior = network.posterior(network.batch_centers(feature, label))

    # First line: classify the sources' own samples. It trains psi and phi.
    logits, pooled, class_latent, posterior = _classify(
        network, feature, label, class_posterior, settings, generator
    )

    # From here on features and latents are constants: the energies train theta alone.
    latents = Latents(prior, class_posterior, posterior)
    batch = batch._replace(feature=feature.detach())
    if not settings.guide_prototypes:
        class_latent = detach(class_latent)
    network.energy.power_iteration()
    weights = network.energy.weights()
    own, start = _chain_starts(network, replay, batch, latents, settings, generator)

    # The chain of eq. 2, without a graph; the points at which it took its gradients are kept.
    with torch.no_grad():
        theta = ChainWeights.of(weights.detach())
        chain = run_chain(
            "langevin", start.feature, theta, theta.bias(start.latent), settings.step, settings.num_steps,
            generator, record="origins",
        )  # fmt: skip
    replay.push(chain.feature, start.label)

    # Second line: contrastive divergence, E down on the source's own samples and up on the chain ends.
    masks = network.energy.masks
    bias, start_bias = latent_bias(weights, own.latent), latent_bias(weights, start.latent)
    own_energy = energy(weights, own.feature, bias, masks(own.feature.shape[1], generator))
    end_energy = energy(weights, chain.feature, start_bias, masks(start.feature.shape[1], generator))

    # Third line: guide the sampler, all its steps as one batched closed-form call.
    assert chain.origins is not None
    origins = settings.supervised(chain.origins, generator)
    guided = _guided(network, weights, origins, start, start_bias, class_latent, settings)
    if network.latent is not None and class_posterior is not None and coefficients.guide_kl:
        guided = _with_kl(guided, network, class_posterior)

    equation = eq7 if network.latent is None else eq10
    positive = Positive(logits, label.repeat(1, settings.num_draws), own_energy, posterior, prior)
    loss = equation(positive, end_energy, guided.parts, coefficients)
    return loss._replace(total=loss.total + pooled)


def _classify(
    network: Network,
    feature: Tensor,
    label: Tensor,
    class_posterior: Gaussian | None,
    settings: TrainSettings,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor, Tensor | None, Gaussian | None]:
    """Logits of every draw of z (sources, draws x batch, classes), loss of a pooled head, z of the classes,
    and q(z|d) of each sample's class."""
    class_latent = draw(class_posterior, generator)
    posterior = None if class_posterior is None else class_posterior.gather(label)
    latent = draw(posterior, generator)
    drawn = [network.head(feature, latent, class_latent)]
    for _ in range(settings.num_draws - 1):
        drawn.append(network.head(feature, draw(posterior, generator), draw(class_posterior, generator)))
    pooled = feature.new_zeros(())
    if network.head.pooled:
        pooled_posterior = network.posterior(network.pooled_centers(feature, label))
        pooled_logits = network.head(feature, latent, draw(pooled_posterior, generator))
        pooled = settings.pooled_weight * cross_entropy(pooled_logits.flatten(0, 1), label.flatten())
    return drawn[0] if len(drawn) == 1 else torch.cat(drawn, dim=1), pooled, class_latent, posterior


class Rows(NamedTuple):
    """Features (sources, rows, dim), their labels (sources, rows) and their latents."""

    feature: Tensor
    label: Tensor
    latent: Tensor | None


def _chain_starts(
    network: Network,
    replay: ReplayBuffer,
    batch: Batch,
    latents: Latents,
    settings: TrainSettings,
    generator: torch.Generator | None,
) -> tuple[Rows, Rows]:
    """The sources' own samples, and where chains start: labelled samples of other sources, some replaced by
    earlier chain ends. z is drawn once and fixed."""
    feature, (start, label) = (
        batch.feature,
        negatives(batch, settings.chains, settings.shift_noise, generator),
    )
    start = replay.replace(start, label, settings.replay_share, generator)
    if latents.class_posterior is None or latents.posterior is None:
        return Rows(feature, batch.label, None), Rows(start, label, None)
    drawn = []  # z of the chain starts, z of the samples
    if settings.chain_latent != "posterior":
        drawn.append((draw(network.prior(start), generator), draw(latents.prior, generator)))
    if settings.chain_latent != "prior":
        start_posterior = latents.class_posterior.gather(label)
        drawn.append((draw(start_posterior, generator), draw(latents.posterior, generator)))
    start_latent, latent = drawn[0]
    if settings.chain_latent == "both":
        start_latent, latent = join(start_latent, drawn[1][0]), join(latent, drawn[1][1])
        feature, start, label = join(feature, feature), join(start, start), join(label, label)
    return Rows(feature, batch.label, detach(latent)), Rows(start, label, detach(start_latent))


class _Guided(NamedTuple):
    parts: Guided
    feature: Tensor
    label: Tensor


def _guided(
    network: Network,
    weights: EnergyWeights,
    origins: Tensor,
    start: Rows,
    start_bias: Tensor,
    class_latent: Tensor | None,
    settings: TrainSettings,
) -> _Guided:
    """One differentiable step from each origin (steps, sources, chains, dim), classified where it ends."""
    steps = len(origins)
    bias = start_bias.repeat(1, steps, 1) if start.latent is not None else start_bias
    origins = origins.transpose(0, 1).flatten(1, 2)
    adapted = guided_step(weights, origins, bias, settings.step.step_size, settings.step.clip)
    read = start.latent if network.head.reads_latent else None
    latent, label = None if read is None else read.repeat(1, steps, 1), start.label.repeat(1, steps)
    adapted_energy = energy(weights.detach(), adapted, bias.detach())
    logits = frozen_call(network.head, adapted, latent, class_latent)
    return _Guided(Guided(adapted_energy, logits, label), adapted, label)


def _with_kl(guided: _Guided, network: Network, class_posterior: Gaussian) -> _Guided:
    """With the KL of the last line of eq. 10 as printed."""
    assert network.latent is not None
    posterior = class_posterior.detach().gather(guided.label)
    parts = guided.parts._replace(posterior=posterior, prior=frozen_call(network.latent, guided.feature))
    return guided._replace(parts=parts)


class Inference(NamedTuple):
    """Test-time inference for a batch."""

    probability: Tensor
    """(batch, classes)."""
    per_source: Tensor
    """(sources, batch, classes), averaged over draws."""
    chain: Chain
    """Rows are draws x batch, draws outermost."""


@torch.no_grad()
def adapt(
    network: Network,
    feature: Tensor,
    keys: Tensor,
    settings: AdaptSettings,
    *,
    latent: Gaussian | None = None,
    sources: tuple[int, ...] | None = None,
    record: bool = False,
) -> Inference:
    """Section 3.3: adapt each sample to each source, classify it there, aggregate over the sources.

    Args:
        network: trained, in eval mode.
        feature: (batch, dim), rescaled.
        keys: (batch,) int64, the samples' own randomness: see `functional.row_keys`.
        settings: test-time settings.
        latent: replaces p(z|x), e.g. by `functional.oracle_latent` in an analysis.
        sources: numbers of the sources to aggregate over; all when None.
        record: keep the trajectory.
    """
    fold, draws = folded(network), max(settings.num_draws, 1)
    z = draw_latent(fold, feature, latent, keys, settings.num_draws)
    rows = feature if draws == 1 else feature.repeat(draws, 1)
    start = rows.expand(network.sources, -1, -1)
    bias, keys = fold.energy.bias(z), keys if draws == 1 else keys.repeat(draws)
    chain = run_chain(
        settings.sampler, start, fold.energy, bias, settings.step, settings.num_steps, keys,
        record=record, distilled=fold.distilled,
    )  # fmt: skip

    def over_draws(values: Tensor) -> Tensor:
        return values if draws == 1 else values.unflatten(1, (draws, len(feature))).mean(1)

    per_source = over_draws(fold.classify(chain.feature, z))
    energies = over_draws(chain.energy_before), over_draws(chain.energy_after)
    return Inference(aggregate(fold, feature, per_source, energies, settings, sources), per_source, chain)


def draw_latent(
    fold: Folded, feature: Tensor, latent: Gaussian | None, keys: Tensor, num_draws: int
) -> Tensor | None:
    """z of each feature (batch, dim) and draw from p(z|x), or from `latent` in its place; its mean without
    draws: (sources, draws x batch, dim)."""
    if fold.latent is None:
        return None
    if latent is None and not num_draws:
        return fold.prior_mean(feature).expand(len(fold.source_center), -1, -1)
    mean, std = latent or fold.latent(feature)
    if num_draws:
        eps = keyed_normal(keys, -2, mean.shape[-1], mean.dtype, num_draws)
        mean = (mean.unsqueeze(-3) + std.unsqueeze(-3) * eps).flatten(-3, -2)
    return mean.expand(len(fold.source_center), -1, -1)


def aggregate(
    fold: Folded,
    feature: Tensor,
    per_source: Tensor,
    energies: tuple[Tensor, Tensor],
    settings: AdaptSettings,
    sources: Sequence[int] | None = None,
) -> Tensor:
    """Aggregate the sources' probabilities (sources, batch, classes) to (batch, classes).

    Args:
        fold: the network.
        feature: (batch, dim), before adaptation.
        per_source: (sources, batch, classes).
        energies: (sources, batch) each, before and after the chain.
        settings: of test time.
        sources: numbers of the sources to aggregate over; all when None.
    """
    name, similarity, zscore = settings.aggregation, energies[0], energies[0]  # for those that read neither
    if name not in ("mean", "confident", "energy"):
        similarity = cosine_to_sources(feature, fold.source_center)
    if name not in ("mean", "confident", "closest", "cosine"):
        zscore = energy_zscore(energies[0], fold.energy_quantiles)
    values = [per_source, similarity, zscore]
    if name == "learned" and settings.source_weights is not None:
        after = energy_zscore(energies[1], fold.energy_quantiles)
        values.append(score(evidence(per_source, similarity, zscore, after), settings.source_weights))
    return AGGREGATIONS[name](*(values if sources is None else select_sources(sources, *values)))
