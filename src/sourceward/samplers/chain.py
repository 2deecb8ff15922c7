"""`run_chain`: a chain on the stacked energies by the fastest path that gives the same samples.

`fused_langevin` is `run("langevin", ...)` without repeated work, equal up to rounding. A step moves x by
v = noise_std * eps, then by d = -step_size * clip(dE/dx). The first layer is linear, so its pre-activation
a0 = Wx x + (Wz z + b0) moves by Wx v and Wx d: it is carried along instead of computed again, and Wx v of
many steps is one product. A step then costs two products with Wx instead of three, the energy that decides
about acceptance is the one the next step compares with, and nothing large is allocated per step. On a CPU the
next step's gradient is computed together with that energy, on the guess that the step will be accepted.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.functional import pad

from sourceward.functional import ChainWeights, row_keys
from sourceward.functional.chain import Lookahead, Workspace
from sourceward.functional.distilled import DistilledWeights, StartPoint, distilled_step
from sourceward.functional.rows import keyed_normals as many_normals
from sourceward.functional.rows import matmul
from sourceward.samplers.base import StepSettings, Target, always, energy_not_higher
from sourceward.samplers.cuda import kernels_for, usable_kernels
from sourceward.samplers.distilled import concatenate
from sourceward.samplers.run import Chain, Record, generator_noise, keyed_noise, run

Normals = Callable[[int, int], Tensor]
"""`normals(k, n)` returns the normals of steps k to k + n: (n, sources or 1, batch, dim), new memory."""

NOISE_ROWS = 2048
"""Rows of noise drawn together: memory does not grow with the number of steps."""

FUSED = {"langevin": True, "langevin_unchecked": False}
"""Samplers with a fused implementation, and whether they refuse steps that raise the energy."""


@torch.no_grad()
def run_chain(
    sampler: str,
    feature: Tensor,
    weights: ChainWeights,
    bias: Tensor,
    settings: StepSettings,
    num_steps: int,
    noise: Tensor | torch.Generator | None,
    *,
    record: Record = False,
    distilled: DistilledWeights | None = None,
) -> Chain:
    """Take `num_steps` steps from `feature` (sources, batch, dim) on the energies of all sources.

    Args:
        sampler: a name in `SAMPLERS`; `distilled` takes one distilled step, then Langevin steps.
        feature: the starts.
        weights: of all sources.
        bias: from `ChainWeights.bias`.
        settings: of each step.
        num_steps: 0 returns the starts themselves.
        noise: keys of the samples, or a generator (training). Fewer keys than rows are those of the first
            rows; the others are padding.
        record: keep trajectory, energies and origins, or the "origins" alone.
        distilled: weights of the distilled sampler of all sources, which that sampler needs.
    """
    fused_on_cpu = sampler in FUSED and not feature.is_cuda
    if isinstance(noise, Tensor) and not fused_on_cpu and len(noise) < feature.shape[1]:
        noise = pad(noise, (0, feature.shape[1] - len(noise)))
    if sampler in FUSED:
        kernels = kernels_for(weights, feature, record)
        if isinstance(noise, Tensor):
            normals = (kernels.KeyedNormals if kernels else keyed_normals)(noise, feature)
        else:
            normals = generator_normals(noise, feature)
        fused = kernels.kernel_langevin if kernels else fused_langevin
        return fused(
            weights, feature, bias, settings, num_steps, normals, checked=FUSED[sampler], record=record
        )
    target = Target(
        lambda x: weights.energy(weights.first(x, bias)),
        lambda x: weights.energy_and_grad(weights.first(x, bias)),
        None if distilled is None else lambda x: distilled_step(distilled, StartPoint.of(weights, x, bias)),
    )
    source = keyed_noise(noise, feature) if isinstance(noise, Tensor) else generator_noise(noise, feature)
    if sampler != "distilled" or num_steps < 2:
        return run(sampler, feature, target, settings, num_steps, source, record=record)
    first = run(sampler, feature, target, settings, 1, source, record=record)
    refined = run_chain(
        "langevin", first.feature, weights, bias, settings, num_steps - 1, noise, record=record
    )
    return concatenate(first, refined)


def keys_of(feature: Tensor, seed: int) -> Tensor:
    """`functional.row_keys` by the fastest path."""
    kernels = usable_kernels() if feature.is_cuda and feature.dtype == torch.float32 else None
    return (kernels.row_keys if kernels else row_keys)(feature, seed)


@torch.no_grad()
def fused_langevin(
    weights: ChainWeights,
    feature: Tensor,
    bias: Tensor,
    settings: StepSettings,
    num_steps: int,
    normals: Normals,
    *,
    checked: bool = True,
    record: Record = False,
) -> Chain:
    """Take `num_steps` Langevin steps on the energies of all sources: `run_chain` without a kernel.

    Args:
        weights, feature, bias, settings, num_steps, record: as in `run_chain`.
        normals: `normals(k, n)` gives the noise of steps k to k + n.
        checked: refuse steps that raise the energy (`langevin`), or take every step (`langevin_unchecked`).
    """
    quick = not record and not feature.is_cuda
    with torch.inference_mode() if quick else nullcontext():  # a tenth faster for one sample
        chain = _FusedChain(weights, feature, bias, settings, num_steps, checked, record)
        together = max(1, NOISE_ROWS // max(feature.shape[1], 1))
        for first in range(0, num_steps, together):
            count = min(together, num_steps - first)
            jitter, lift = _noise(weights, feature, settings, normals, first, count)
            for k in range(count):
                chain.step(jitter, lift, k, count)
        result = chain.result()
    if quick:  # inference tensors cannot be used in autograd; their copies can
        ends = result.feature, result.energy_before, result.energy_after, result.steps
        return Chain(*(value.clone() for value in ends))
    return result


class _FusedChain:
    """The state of the chains between steps, and the memory that steps share."""

    def __init__(
        self,
        weights: ChainWeights,
        feature: Tensor,
        bias: Tensor,
        settings: StepSettings,
        num_steps: int,
        checked: bool,
        record: Record,
    ) -> None:
        self.weights, self.record = weights, record
        self.accepts = energy_not_higher if checked else always
        self.bound = settings.clip * settings.step_size
        self.a = weights.first(feature, bias)
        self.space = Workspace(weights, self.a, -settings.step_size)
        self.energy = self.before = self.space.energy(self.a)
        self.taken, self.taken_by_all = torch.zeros_like(self.energy, dtype=torch.int64), 0
        self.x = feature.clone() if num_steps else feature
        self.x_new, self.a_new = torch.empty_like(self.x), torch.empty_like(self.a)
        self.points, self.values = [feature], [self.energy]
        # Steps beside the batch, so that training takes all steps as one batch without a copy.
        shape = (len(feature), num_steps, *feature.shape[1:])
        self.origins, self.done = feature.new_empty(shape) if record else None, 0
        alone = feature.is_cuda or num_steps < 2 or not settings.noise_std
        self.ahead = None if alone else Lookahead(weights, self.a, -settings.step_size)
        self.all_accepted, self.is_ahead = True, False

    def step(
        self, jitter: Sequence[Tensor] | None, lift: Sequence[Tensor] | None, k: int, count: int
    ) -> None:
        """Take step k of the `count` steps whose noise was drawn together: see `_noise`."""
        if self.ahead is not None and self.is_ahead:
            a_origin, back = self.ahead.origin, self.ahead.backward_ahead()
        else:
            a_origin = self.a if lift is None else lift[k].add_(self.a)
            _, back = self.space.backward_to_first(a_origin)
        matmul(back, self.weights.down, out=self.x_new).clamp_(-self.bound, self.bound)
        matmul(self.x_new, self.weights.up, a_origin, out=self.a_new)
        origin = self.x if jitter is None else jitter[k].add(self.x)
        if self.origins is not None:
            self.origins[:, self.done] = origin
        self.x_new.add_(origin)
        # Guess that this step is accepted by all chains if the last one was.
        next_lift = lift[k + 1] if lift is not None and self.all_accepted and k + 1 < count else None
        if self.ahead is None or next_lift is None:
            energy = self.space.energy(self.a_new)
        else:
            energy = self.ahead.energy_and_ahead(self.a_new, next_lift)
        self._accept(energy)
        self.is_ahead = self.all_accepted and next_lift is not None
        self.done += 1
        if self.record is True:
            self.points.append(self.x.clone())
            self.values.append(self.energy)

    def _accept(self, energy: Tensor) -> None:
        """Take the proposal where the accept rule says so; `energy` is the proposal's."""
        accepted = self.accepts(self.energy, energy)
        self.all_accepted = not self.x.is_cuda and bool(accepted.all())
        if self.all_accepted:  # the usual case, and swapping two buffers is free
            self.x, self.x_new, self.a, self.a_new = self.x_new, self.x, self.a_new, self.a
            self.energy = energy
            self.taken_by_all += 1
        else:
            row = accepted.unsqueeze(-1)
            torch.where(row, self.x_new, self.x, out=self.x)
            torch.where(row, self.a_new, self.a, out=self.a)
            self.energy = torch.where(accepted, energy, self.energy)
            self.taken += accepted

    def result(self) -> Chain:
        return Chain(
            self.x,
            self.before,
            self.energy,
            self.taken.add_(self.taken_by_all),
            torch.stack(self.points) if self.record is True else None,
            torch.stack(self.values) if self.record is True else None,
            self.origins.transpose(0, 1) if self.origins is not None and self.done else None,
        )


def _noise(
    weights: ChainWeights, feature: Tensor, settings: StepSettings, normals: Normals, first: int, count: int
) -> tuple[Sequence[Tensor] | None, Sequence[Tensor] | None]:
    """noise_std * eps of `count` steps, (sources or 1, batch, dim) each, and what it adds to a0."""
    if not settings.noise_std:
        return None, None
    jitter = normals(first, count).mul_(settings.noise_std)
    flat, padding = jitter.transpose(0, 1).flatten(1, 2), feature.shape[1] - jitter.shape[2]
    if padding:  # whose noise need not be multiplied; the product has a multiple of the rows it needs
        flat = pad(flat, (0, 0, 0, -flat.shape[1] % feature.shape[1]))
    lift = matmul(flat.expand(len(feature), -1, -1), weights.up)
    lift = lift[:, : count * jitter.shape[2]].unflatten(1, (count, -1))
    if padding:
        jitter, lift = (pad(noise, (0, 0, 0, padding)) for noise in (jitter, lift))
    return jitter.unbind(), lift.unbind(1)


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
