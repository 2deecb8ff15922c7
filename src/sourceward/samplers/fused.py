"""The Langevin chain of `langevin`, on the stacked energy, with nothing computed twice.

A step moves x by v = noise_std * eps, then by d = -step_size * clip(dE/dx). The first layer is linear, so its
pre-activation a0 = Wx x + (Wz z + b0) moves by Wx v and Wx d: it is carried along instead of computed again,
and Wx v of many steps is one product. A step then costs two products with Wx instead of three, the energy
that decides about acceptance is the one the next step compares with, and nothing large is allocated per step.
On a CPU it is found together with the next step's gradient, in the hope that the step will be accepted.
The numbers are those of `run("langevin", ...)` up to rounding.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from sourceward.functional.chain import ChainWeights, Lookahead, Workspace
from sourceward.functional.noise import keyed_normals as many_normals
from sourceward.functional.rows import matmul
from sourceward.samplers.accept import ACCEPT_RULES
from sourceward.samplers.base import StepSettings
from sourceward.samplers.run import Chain, Record

Normals = Callable[[int, int], Tensor]
"""`normals(k, n)` are the normals of steps k to k + n: (n, sources or 1, batch, dim), new memory."""

RULES = ("always", "energy_not_higher")
"""Accept rules that look at energies alone."""

NOISE_ROWS = 2048
"""Rows of noise made together: memory does not grow with the number of steps."""


@torch.no_grad()
def fused_langevin(
    weights: ChainWeights,
    feature: Tensor,
    bias: Tensor,
    settings: StepSettings,
    num_steps: int,
    normals: Normals,
    *,
    record: Record = False,
) -> Chain:
    """Take `num_steps` Langevin steps from `feature` on the energies of all sources.

    Args:
        weights: of all sources.
        feature: (sources, batch, dim), the starts.
        bias: from `ChainWeights.bias`.
        settings: of each step; the accept rule is one of `RULES`.
        num_steps: 0 returns the starts themselves.
        normals: `normals(k, n)` gives the noise of steps k to k + n.
        record: keep trajectory, energies and origins, or the "origins" alone.
    """
    quick = not record and not feature.is_cuda
    with torch.inference_mode() if quick else nullcontext():  # a tenth faster for one sample
        a = weights.first(feature, bias)
        space = Workspace(weights, a, -settings.step_size)
        energy = before = space.energy(a)
        accepts, bound = ACCEPT_RULES[settings.accept], settings.clip * settings.step_size
        taken, by_all = torch.zeros_like(energy, dtype=torch.int64), 0
        x = feature.clone() if num_steps else feature
        x_new, a_new = torch.empty_like(x), torch.empty_like(a)
        points, values = [feature], [energy]
        # Steps beside the batch, so that training takes all steps as one batch without a copy.
        shape = (len(feature), num_steps, *feature.shape[1:])
        origins = feature.new_empty(shape) if record else None
        together = max(1, NOISE_ROWS // max(feature.shape[1], 1))
        alone = feature.is_cuda or num_steps < 2 or not settings.noise_std
        ahead = None if alone else Lookahead(weights, a, -settings.step_size)
        hopeful, ready = True, False  # that all accept the next step too; so that its origin was looked at
        for first in range(0, num_steps, together):
            count = min(together, num_steps - first)
            jitter, lift = _noise(weights, feature, settings, normals, first, count)
            for k in range(count):
                if ahead is not None and ready:
                    a_origin, back = ahead.origin, ahead.backward_ahead()
                else:
                    a_origin = a if lift is None else lift[k].add_(a)
                    _, back = space.backward_to_first(a_origin)
                matmul(back, weights.down, out=x_new).clamp_(-bound, bound)
                matmul(x_new, weights.up, a_origin, out=a_new)
                origin = x if jitter is None else jitter[k].add(x)
                if origins is not None:
                    origins[:, first + k] = origin
                x_new.add_(origin)
                coming = lift[k + 1] if lift is not None and hopeful and k + 1 < count else None
                if ahead is None or coming is None:
                    e_new = space.energy(a_new)
                else:
                    e_new = ahead.energy_and_ahead(a_new, coming)
                accepted = accepts(energy, e_new, None, e_new)
                hopeful = not x.is_cuda and bool(accepted.all())
                ready = hopeful and coming is not None
                if hopeful:  # the rule, and an exchange is free
                    x, x_new, a, a_new, energy = x_new, x, a_new, a, e_new
                    by_all += 1
                else:
                    row = accepted.unsqueeze(-1)
                    torch.where(row, x_new, x, out=x)
                    torch.where(row, a_new, a, out=a)
                    energy = torch.where(accepted, e_new, energy)
                    taken += accepted
                if record is True:
                    points.append(x.clone())
                    values.append(energy)
        taken += by_all
    if quick:  # copies are ordinary tensors again
        return Chain(x.clone(), before.clone(), energy.clone(), taken.clone())
    return Chain(
        x,
        before,
        energy,
        taken,
        torch.stack(points) if record is True else None,
        torch.stack(values) if record is True else None,
        origins.transpose(0, 1) if origins is not None and num_steps else None,
    )


def _noise(
    weights: ChainWeights, feature: Tensor, settings: StepSettings, normals: Normals, first: int, count: int
) -> tuple[Sequence[Tensor] | None, Sequence[Tensor] | None]:
    """noise_std * eps of each of some steps, (sources or 1, batch, dim), and what it adds to a0."""
    if not settings.noise_std:
        return None, None
    jitter = normals(first, count).mul_(settings.noise_std)
    flat = jitter.transpose(0, 1).flatten(1, 2).expand(len(feature), -1, -1)
    return jitter.unbind(), matmul(flat, weights.up).unflatten(1, (count, -1)).unbind(1)


def keyed_normals(keys: Tensor, like: Tensor) -> Normals:
    """The normals of `keyed_noise`, several steps at once."""

    def source(k: int, n: int) -> Tensor:
        return many_normals(keys, range(2 * k, 2 * (k + n), 2), like.shape[-1], like.dtype).unsqueeze(1)

    return source


def generator_normals(generator: torch.Generator | None, like: Tensor) -> Normals:
    """Normals from a generator, several steps at once."""

    def source(k: int, n: int) -> Tensor:
        return torch.randn(n, *like.shape, generator=generator, dtype=like.dtype, device=like.device)

    return source
