"""Distil each source's chain into one step.

Chains run from features of all sources, some of them mixed and under noise; a small map per source learns
where they end and what the classifiers predict there. No target is involved, and the trained network does not
change.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from sourceward.functional.distilled import StartPoint, distilled_step
from sourceward.nn import DistilledStep, Folded, Network, folded
from sourceward.samplers import StepSettings, run_chain
from sourceward.training.learner import rate

STARTS = 4096
"""Chains of each source to learn from."""
BLOCK = 512
"""Chains run together."""
BATCH = 256
LEARNING_RATE = 3e-3
MIX, NOISE = 0.5, 0.5
"""Largest share of another sample in half of the starts, and largest noise on a start, in units of the
features' root mean square: shifts of the same kind as in training, and between the sources."""


@torch.no_grad()
def distil(
    network: Network,
    feature: Tensor,
    step: StepSettings,
    num_steps: int = 50,
    max_iter: int = 300,
    seed: int = 0,
) -> DistilledStep:
    """The distilled steps of all sources.

    Args:
        network: trained.
        feature: (rows, dim), rescaled features of the sources.
        step: of the chains.
        num_steps: their length.
        max_iter: training iterations.
        seed: of everything random.
    """
    fold, device = folded(network.eval()), feature.device
    generator = torch.Generator(device).manual_seed(seed)
    blocks = [_chains(fold, start, step, num_steps, generator) for start in _starts(feature, generator)]
    feet, latents, ends, answers = zip(*blocks)
    start_point = StartPoint(*(torch.cat(parts, 1) for parts in zip(*feet)))
    end, said = torch.cat(ends, 1), torch.cat(answers, 1)
    latent = None if latents[0] is None else torch.cat(latents, 1)
    sources, _, hidden = start_point.hidden.shape
    reach = max(step.step_size * num_steps, 1e-6)
    result = DistilledStep(sources, hidden, feature.shape[1], reach)
    result.reset_parameters(torch.Generator().manual_seed(seed))
    result.to(device)
    optimizer = torch.optim.AdamW(result.parameters(), LEARNING_RATE, weight_decay=1e-4)
    for iteration in range(max_iter):
        rows = torch.randint(end.shape[1], (BATCH,), generator=generator, device=device)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate(iteration / max_iter, "cosine")
        with torch.enable_grad():
            reached = distilled_step(result.weights(), StartPoint(*(part[:, rows] for part in start_point)))
            z = None if latent is None else latent[:, rows]
            answer = fold.classify(reached, z).clamp_min(1e-9).log()
            apart = (reached - end[:, rows]).square().mean()
            loss = apart + kl_div(answer, said[:, rows], reduction="none").sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    return result.requires_grad_(False).eval()


def _starts(feature: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Where the chains begin, in blocks of (rows, dim)."""
    options: dict[str, Any] = {"generator": generator, "device": feature.device}
    rows = torch.randint(len(feature), (2, STARTS), **options)
    mixed, far, size = torch.rand(3, STARTS, 1, **options)
    start = feature[rows[0]].lerp(feature[rows[1]], MIX * far * (mixed < 0.5))
    normal = torch.randn(start.shape, **options)
    return list((start + NOISE * size * normal).split(BLOCK))


def _chains(
    fold: Folded, start: Tensor, step: StepSettings, num_steps: int, generator: torch.Generator
) -> tuple[StartPoint, Tensor | None, Tensor, Tensor]:
    """Energies and hidden layers at the starts, z, chain ends, and the predictions at the ends."""
    start_of_all, latent = start.expand(len(fold.source_center), -1, -1), None
    if fold.latent is not None:
        mean, std = fold.latent(start)
        drawn = torch.rand(len(start), 1, generator=generator, device=start.device) < 0.5
        eps = torch.randn(mean.shape, generator=generator, device=start.device)
        latent = (mean + drawn * std * eps).expand_as(start_of_all)
    bias = fold.energy.bias(latent)
    end = run_chain("langevin", start_of_all, fold.energy, bias, step, num_steps, generator).feature
    return StartPoint.of(fold.energy, start_of_all, bias), latent, end, fold.classify(end, latent)
