"""The naive chain that speed is compared with: one source at a time, autograd, the accept test."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from sourceward.functional import EnergyWeights
from sourceward.samplers import StepSettings


def naive_chains(
    weights: EnergyWeights,
    feature: Tensor,
    latent: Tensor | None,
    normals: Sequence[Tensor],
    settings: StepSettings,
) -> tuple[Tensor, Tensor]:
    """Return final points and their energies: (sources, batch, dim) and (sources, batch).

    Args:
        weights: of all sources.
        feature: (batch, dim), where every source starts.
        latent: (batch, dim), or None.
        normals: the noise of each step, (batch, dim).
        settings: of each step; the accept rule is `energy_not_higher`.
    """
    ends = [_chain(weights, source, feature, latent, normals, settings) for source in range(len(weights.out))]
    return torch.stack([x for x, _ in ends]), torch.stack([e for _, e in ends])


def _chain(
    weights: EnergyWeights,
    source: int,
    x: Tensor,
    z: Tensor | None,
    normals: Sequence[Tensor],
    settings: StepSettings,
) -> tuple[Tensor, Tensor]:
    before = _energy(weights, source, x, z).detach()
    for eps in normals:
        origin = (x + settings.noise_std * eps).detach().requires_grad_(True)
        (grad,) = torch.autograd.grad(_energy(weights, source, origin, z).sum(), origin)
        moved = origin.detach() - settings.step_size * grad.clamp(-settings.clip, settings.clip)
        after = _energy(weights, source, moved, z).detach()
        accepted = after <= before
        x = torch.where(accepted.unsqueeze(-1), moved, x)
        before = torch.where(accepted, after, before)
    return x, before


def _energy(weights: EnergyWeights, source: int, x: Tensor, z: Tensor | None) -> Tensor:
    a0 = x @ weights.feature[source].T + weights.hidden_bias[source]
    if z is not None and weights.latent is not None:
        a0 = a0 + z @ weights.latent[source].T
    a1 = silu(a0) @ weights.narrow[source].T + weights.narrow_bias[source]
    return torch.sigmoid(silu(a1) @ weights.out[source] + weights.out_bias[source])
