"""Algorithm 1 of the paper, top to bottom: the training objective, then the test-time answer.

Xiao, Zhen, Liao & Snoek, "Energy-Based Test Sample Adaptation for Domain Generalization", ICLR 2023.
x is a feature, z its latent, d a class centre, E^i the energy of source i. Sources are the leading axis of
every tensor, so one call serves all of them. The equations themselves are in `functional.losses` (7, 10)
and `samplers.langevin` (2); where chains start is in `negatives`.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sourceward.functional import (
    ChainWeights,
    EnergyWeights,
    Gaussian,
    Guided,
    Loss,
    Positive,
    energy,
    energy_and_grad,
    eq7,
    eq10,
    guided_step,
    latent_bias,
    quantile,
)
from sourceward.functional.negatives import Batch, jitter, negatives
from sourceward.functional.optional import detach, draw, join
from sourceward.functional.score_matching import corrupt, denoising_loss
from sourceward.latents import class_latent, keyed_latent
from sourceward.nn import Network, ReplayBuffer, folded, frozen_call
from sourceward.samplers import Chain, Target, run_chain
from sourceward.settings import AdaptSettings, TrainSettings
from sourceward.votes import cast_votes


def objective(
    network: Network,
    replay: ReplayBuffer,
    batch: Batch,
    settings: TrainSettings,
    generator: torch.Generator | None = None,
) -> Loss:
    """One iteration of Algorithm 1 for all sources: the loss of eq. 10, or eq. 7 without latent."""
    feature, label = jitter(batch.feature, settings.feature_noise, generator), batch.label

    # Latents: prior p(z|x), and posterior q(z|d) of every class centre of the batch.
    prior = network.prior(feature)
    class_posterior = network.posterior(network.batch_centers(feature, label))
    class_latent = draw(class_posterior, generator)
    posterior = None if class_posterior is None else class_posterior.gather(label)

    # First line: classify the sources' own samples. It trains psi and phi.
    latent = draw(posterior, generator)
    logits = network.head(feature, latent, class_latent)
    pooled = feature.new_zeros(())
    if network.head.pooled:
        pooled_posterior = network.posterior(network.pooled_centers(feature, label))
        pooled_logits = network.head(feature, latent, draw(pooled_posterior, generator))
        pooled = settings.pooled * cross_entropy(pooled_logits.flatten(0, 1), label.flatten())

    # From here on features and latents are constants: the energies train theta alone.
    feature, class_latent = feature.detach(), detach(class_latent)
    network.energy.power_iteration()
    weights = network.energy.weights()
    frozen = weights.detach()

    # Negatives: labelled samples of other sources, some swapped for past chain ends. z is fixed once.
    start, start_label = negatives(batch._replace(feature=feature), settings, generator)
    start = replay.replace(start, start_label, settings.replay_share, generator)
    start_latent, latent = draw(network.prior(start), generator), draw(prior, generator)
    if settings.posterior_chain and class_posterior is not None and posterior is not None:
        start_latent = join(start_latent, draw(class_posterior.gather(start_label), generator))
        start, start_label = join(start, start), join(start_label, start_label)
        latent, feature = join(latent, draw(posterior, generator)), join(feature, feature)
    start_latent, latent = detach(start_latent), detach(latent)

    # The chain of eq. 2, without a graph; the points where it took its gradients are kept.
    with torch.no_grad():
        theta = ChainWeights.of(frozen)
        bias = theta.bias(start_latent)
        chain = run_chain(
            "langevin", start, theta, bias, settings.step, settings.num_steps, generator, record="origins"
        )
    replay.push(chain.feature, start_label)

    # Second line: contrastive divergence, E down on the source's own samples and up on the chain ends.
    masks = network.energy.masks
    bias, start_bias = latent_bias(weights, latent), latent_bias(weights, start_latent)
    own_energy = energy(weights, feature, bias, masks(feature.shape[1], generator))
    end_energy = energy(weights, chain.feature, start_bias, masks(start.shape[1], generator))

    # Third line: guide the sampler, all its steps as one batched closed-form call.
    assert chain.origins is not None
    origins = settings.supervised(chain.origins, generator)
    steps = len(origins)
    step_bias = start_bias.repeat(1, steps, 1) if start_latent is not None else start_bias
    origins = origins.transpose(0, 1).flatten(1, 2)
    moved = guided_step(weights, origins, step_bias, settings.step.step_size, settings.step.clip)
    read = start_latent if network.head.reads_latent else None
    moved_latent = None if read is None else read.repeat(1, steps, 1)
    moved_label = start_label.repeat(1, steps)
    moved_energy = energy(frozen, moved, step_bias.detach())
    guided = Guided(moved_energy, frozen_call(network.head, moved, moved_latent, class_latent), moved_label)
    if network.latent is not None and class_posterior is not None and settings.coefficients.guide_kl:
        moved_posterior = class_posterior.detach().gather(moved_label)
        guided = guided._replace(posterior=moved_posterior, prior=frozen_call(network.latent, moved))

    # In place of the second line, where that is asked for: one step of the sampler denoises own samples.
    denoise, coefficients = pooled.new_zeros(()), settings.coefficients
    if settings.objective == "dsm":
        noisy, sigma = corrupt(batch.feature.detach(), generator)
        noisy_bias = latent_bias(weights, detach(draw(network.prior(noisy), generator)))
        size, coefficients = settings.step.step_size, replace(coefficients, contrast=0.0)
        denoise = denoising_loss(weights, noisy, batch.feature.detach(), sigma, noisy_bias, size)

    equation = eq7 if network.latent is None else eq10
    positive = Positive(logits, label, own_energy, posterior, prior)
    loss = equation(positive, end_energy, guided, coefficients)
    return loss._replace(total=loss.total + pooled + denoise)


class Answer(NamedTuple):
    """The outcome for a batch: the vote, each source's own answer, and the chains behind it."""

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
) -> Answer:
    """Section 3.3: move each sample toward each source, classify it there, let the sources vote.

    Args:
        network: trained, in eval mode.
        feature: (batch, dim), rescaled.
        keys: (batch,) int64, the samples' own randomness: see `functional.row_keys`.
        settings: test-time settings.
        latent: replaces p(z|x), e.g. by `functional.oracle_latent` in an analysis.
        sources: the sources that vote; all when None.
        record: keep the trajectory.
    """
    fold, draws = folded(network), max(settings.num_draws, 1)
    z = keyed_latent(fold, feature, latent, keys, settings)
    rows = feature if draws == 1 else feature.repeat(draws, 1)
    start = rows.expand(network.sources, -1, -1)
    bias, keys = fold.energy.bias(z), keys if draws == 1 else keys.repeat(draws)
    before = None
    if settings.latent == "class" and latent is None and z is not None:
        z, before = class_latent(fold, start, z, sources)
        bias = fold.energy.bias(z)
    stop = None if settings.stop is None else quantile(fold.own_energy, settings.stop)
    sampler, step, num_steps = settings.sampler, settings.step, settings.num_steps
    limits: dict[str, Any] = {"record": record, "stop_below": stop, "distilled": fold.distilled}
    chain = run_chain(sampler, start, fold.energy, bias, step, num_steps, keys, **limits)
    per_source = fold.classify(chain.feature, z)
    if settings.blend and num_steps:
        per_source = per_source.lerp(fold.classify(start, z), settings.blend)

    def over_draws(values: Tensor) -> Tensor:
        return values if draws == 1 else values.unflatten(1, (draws, len(feature))).mean(1)

    per_source = over_draws(per_source)
    before = chain.energy_before if before is None else before
    energies = over_draws(before), over_draws(chain.energy_before), over_draws(chain.energy_after)
    return Answer(cast_votes(fold, feature, per_source, energies, settings, sources), per_source, chain)


def energy_target(weights: EnergyWeights, latent: Tensor | None) -> Target:
    """E^i(.|z) as something a sampler can walk on; what does not change along the chain is computed here."""
    bias = latent_bias(weights, latent)
    return Target(lambda x: energy(weights, x, bias), lambda x: energy_and_grad(weights, x, bias))
