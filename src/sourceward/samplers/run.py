"""`run`: the reference loop over a sampler's steps. `run_chain` is the fast one, for stacked energies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sourceward.functional.rows import keyed_normal, keyed_uniform
from sourceward.samplers.base import SAMPLERS, Noise, State, StepSettings, Target

NoiseSource = Callable[[int], Noise]
"""`noise(k)` is the randomness of step k."""

Record = bool | Literal["origins"]
"""What a chain records: nothing, everything, or the points at which it took its gradients."""


@dataclass(frozen=True)
class Chain:
    """Where the chains ended. Energies are (sources, batch)."""

    feature: Tensor
    energy_before: Tensor
    energy_after: Tensor
    steps: Tensor
    """Accepted steps of each chain, (sources, batch)."""
    trajectory: Tensor | None = None
    """Every point from start to end, (steps + 1, sources, batch, dim), when recorded."""
    energies: Tensor | None = None
    """Energy at each of those points, (steps + 1, sources, batch), when recorded."""
    origins: Tensor | None = None
    """The point at which each step took its gradient, (steps, sources, batch, dim), when recorded."""


def run(
    sampler: str,
    feature: Tensor,
    target: Target,
    settings: StepSettings,
    num_steps: int,
    noise: NoiseSource,
    *,
    record: Record = False,
) -> Chain:
    """Take `num_steps` steps from `feature` on `target`.

    Args:
        sampler: a name in `SAMPLERS`.
        feature: (sources, batch, dim), the starts.
        target: energy and gradient.
        settings: of each step.
        num_steps: 0 returns the starts themselves.
        noise: `noise(k)` gives the randomness of step k: see `keyed_noise` and `generator_noise`.
        record: keep trajectory, energies and origins, or the "origins" alone.
    """
    step = SAMPLERS[sampler]
    energy, grad = target.energy_and_grad(feature)
    state = State(feature, energy, grad, torch.zeros_like(feature))
    taken = torch.zeros(energy.shape, dtype=torch.int64, device=energy.device)
    points, values, origins = [feature], [energy], []
    for k in range(num_steps):
        state, info = step(state, target, noise(k), settings)
        taken += info.accepted
        if record:
            origins.append(info.origin)
        if record is True:
            points.append(state.feature)
            values.append(state.energy)
    return Chain(
        state.feature,
        energy,
        state.energy,
        taken,
        torch.stack(points) if record is True else None,
        torch.stack(values) if record is True else None,
        torch.stack(origins) if origins else None,
    )


def keyed_noise(keys: Tensor, like: Tensor) -> NoiseSource:
    """Noise that belongs to the sample: row b depends on `keys[b]` and the step alone.

    All sources see the same numbers (common random numbers), so they differ by their energies only.

    Args:
        keys: (batch,) int64, e.g. from `functional.row_keys`.
        like: the starts, (sources, batch, dim).
    """

    def source(k: int) -> Noise:
        normal = keyed_normal(keys, 2 * k, like.shape[-1], like.dtype)
        uniform = keyed_uniform(keys, 2 * k + 1, like.dtype)
        return Noise(normal.expand_as(like), uniform.expand(like.shape[:-1]))

    return source


def generator_noise(generator: torch.Generator | None, like: Tensor) -> NoiseSource:
    """Noise from a generator, for training: fast, but it depends on the position in the batch."""

    def source(k: int) -> Noise:
        options: dict[str, Any] = {"generator": generator, "dtype": like.dtype, "device": like.device}
        return Noise(torch.randn(like.shape, **options), torch.rand(like.shape[:-1], **options))

    return source
