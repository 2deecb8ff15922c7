"""Algorithm 1 of the paper, top to bottom: the training objective, then the test-time answer.

Xiao, Zhen, Liao & Snoek, "Energy-Based Test Sample Adaptation for Domain Generalization", ICLR 2023.
x is a feature, z its latent, d a class centre, E^i the energy of source i. Sources are the leading axis of
every tensor, so one call serves all of them.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from sourceward.errors import InputError
from sourceward.functional import (
    AGGREGATIONS,
    Coefficients,
    Gaussian,
    Guided,
    Loss,
    Positive,
    cosine_to_sources,
    energy,
    energy_and_grad,
    eq7,
    eq10,
    guided_step,
    keyed_normal,
    latent_bias,
)
from sourceward.nn import Network, ReplayBuffer
from sourceward.samplers import Chain, StepSettings, Target, generator_noise, keyed_noise, run


@dataclass(frozen=True)
class TrainSettings:
    """How the objective is formed. Defaults follow the released code.

    Args:
        num_steps: length of the chains.
        step: settings of each step.
        guide: supervise `all` steps of the chain (released code) or the `last` one (eq. 10 as printed).
        posterior_chain: also run a chain whose z is the posterior of the sample's class.
        replay_share: share of chain starts taken from the replay buffer.
        coefficients: weights of the terms.
        chains: chains of each source per iteration; as many as the batch has rows when None.
        feature_noise: std, in units of the feature's own, of the noise that makes negatives of a lone source.
    """

    num_steps: int = 20
    step: StepSettings = field(default_factory=StepSettings)
    guide: str = "all"
    posterior_chain: bool = True
    replay_share: float = 0.5
    coefficients: Coefficients = field(default_factory=Coefficients)
    chains: int | None = None
    feature_noise: float = 1.0

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise InputError(f"Expected training `num_steps` to be 1 or more, but got {self.num_steps}.")
        if self.guide not in ("all", "last"):
            raise InputError(f"Expected `guide` to be 'all' or 'last', but got {self.guide!r}.")


class Batch(NamedTuple):
    """Features of every source and, where a source stands alone, shifted ones to practise on."""

    feature: Tensor
    """(sources, batch, dim)."""
    label: Tensor
    """(sources, batch)."""
    shifted: Tensor | None = None
    """(sources, negatives, dim): negatives that replace the other sources' features."""
    shifted_label: Tensor | None = None


def objective(
    network: Network,
    replay: ReplayBuffer,
    batch: Batch,
    settings: TrainSettings,
    generator: torch.Generator | None = None,
) -> Loss:
    """One iteration of Algorithm 1 for all sources: the loss of eq. 10 (eq. 7 without latent)."""
    feature, label = batch.feature, batch.label

    # Latents: prior p(z|x), posterior q(z|d_x) from the batch's class centres (eq. 8).
    centers = network.batch_centers(feature, label)
    prior, class_posterior = network.prior(feature), network.posterior(centers)
    posterior = None if class_posterior is None else class_posterior.gather(label)
    class_latent = _draw(class_posterior, generator)

    # First line: classify the sources' own samples.
    logits = network.head(feature, _draw(posterior, generator), class_latent)

    # The energies see features and latents as constants: they train theta alone.
    feature, frozen_class_latent = feature.detach(), _detach(class_latent)
    network.energy.power_iteration()
    weights = network.energy_weights()

    # Negatives: other sources' samples, some swapped for past chain ends; z is fixed once per chain.
    start, start_label = _negatives(batch, settings, generator)
    start = replay.replace(start, start_label, settings.replay_share, generator)
    latent = _draw(network.prior(start), generator)
    positive_latent = _draw(prior, generator)
    if settings.posterior_chain and class_posterior is not None:
        start, start_label = torch.cat([start, start], 1), torch.cat([start_label, start_label], 1)
        latent = torch.cat([latent, _draw(class_posterior.gather(start_label[:, start.shape[1] // 2 :]), generator)], 1)
        feature = torch.cat([feature, feature], 1)
        positive_latent = torch.cat([positive_latent, _draw(posterior, generator)], 1)
    latent, positive_latent = _detach(latent), _detach(positive_latent)

    # The chain (eq. 2), without a graph; its points are kept.
    frozen = weights.detach()
    with torch.no_grad():
        target = _target(frozen, latent)
        noise = generator_noise(generator, start)
        chain = run("langevin", start, target, settings.step, settings.num_steps, noise, record=True)
    replay.push(chain.feature, start_label)

    # Second line: contrastive divergence.
    positive_energy = energy(
        weights, feature, latent_bias(weights, positive_latent), network.energy.masks(feature.shape[1], generator)
    )
    negative_energy = energy(
        weights, chain.feature, latent_bias(weights, latent), network.energy.masks(start.shape[1], generator)
    )

    # Third line: guide the sampler. Every step at once, each from its own detached origin.
    origins = chain.origins if settings.guide == "all" else chain.origins[-1:]
    steps, sources, rows, dim = origins.shape
    origins = origins.transpose(0, 1).reshape(sources, steps * rows, dim)
    bias = latent_bias(weights, latent).repeat(1, steps, 1) if latent is not None else latent_bias(weights, None)
    moved = guided_step(weights, origins, bias, settings.step.step_size, settings.step.clip)
    frozen_latent = None if latent is None else latent.repeat(1, steps, 1)
    moved_label = start_label.repeat(1, steps)
    guided = Guided(
        energy(frozen, moved, bias.detach()),
        _frozen_head(network, moved, frozen_latent, frozen_class_latent),
        moved_label,
    )
    loss = eq10 if network.latent is not None else eq7
    positive = Positive(logits, label, positive_energy, posterior, prior)
    return loss(positive, negative_energy, guided, settings.coefficients)


def _negatives(batch: Batch, settings: TrainSettings, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Labelled chain starts for each source, (sources, batch, dim): samples that are not its own."""
    if batch.shifted is not None and batch.shifted_label is not None:
        return batch.shifted, batch.shifted_label
    feature, label = batch.feature.detach(), batch.label
    sources, rows, dim = feature.shape
    chains = settings.chains or rows
    if sources == 1:
        options = {"generator": generator, "device": feature.device, "dtype": feature.dtype}
        feature, label = feature[:, :chains], label[:, :chains]
        return feature + settings.feature_noise * torch.randn(feature.shape, **options), label
    own = torch.arange(sources, device=feature.device).unsqueeze(1) * rows
    pick = torch.randint((sources - 1) * rows, (sources, chains), generator=generator, device=feature.device)
    pick = pick + rows * (pick >= own)  # skip the source's own rows
    return feature.reshape(-1, dim)[pick], label.reshape(-1)[pick]


def _target(weights, latent: Tensor | None) -> Target:
    bias = latent_bias(weights, latent)
    return Target(lambda x: energy(weights, x, bias), lambda x: energy_and_grad(weights, x, bias))


def _frozen_head(network: Network, feature: Tensor, latent: Tensor | None, class_latent: Tensor | None) -> Tensor:
    """p_sg(phi)(y|z,x): the head with its parameters held constant."""
    parameters = {name: p.detach() for name, p in network.head.named_parameters()}
    return functional_call(network.head, parameters, (feature, latent, class_latent))


def _draw(gaussian: Gaussian | None, generator: torch.Generator | None) -> Tensor | None:
    return None if gaussian is None else gaussian.sample(generator)


def _detach(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
