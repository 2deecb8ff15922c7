"""Small random parts that several tests need."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward.data.feeds import Feed
from sourceward.functional import EnergyWeights, energy, energy_and_grad, latent_bias
from sourceward.nn import Network
from sourceward.samplers import Target
from sourceward.settings import LoopSettings, TrainSettings
from sourceward.training.loop import Training
from sourceward.training.trainer import Trainer


def make_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_weights(
    sources: int,
    dim: int,
    hidden: int = 6,
    narrow: int = 5,
    latent: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> EnergyWeights:
    """Weights of order one, so that no layer saturates and no gradient vanishes."""
    generator = make_generator(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=generator, dtype=dtype)

    return EnergyWeights(
        feature=normal(sources, hidden, dim, scale=dim**-0.5),
        latent=normal(sources, hidden, dim, scale=dim**-0.5) if latent else None,
        hidden_bias=normal(sources, hidden),
        narrow=normal(sources, narrow, hidden, scale=hidden**-0.5),
        narrow_bias=normal(sources, narrow),
        out=normal(sources, narrow),
        out_bias=normal(sources),
    )


def target_of(weights: EnergyWeights, latent: Tensor | None) -> Target:
    """The stacked energy with its latent fixed, as the target of a sampler."""
    bias = latent_bias(weights, latent)
    return _with_distilled(lambda x: energy(weights, x, bias), lambda x: energy_and_grad(weights, x, bias))


def _with_distilled(energy, energy_and_grad) -> Target:
    """A target whose distilled map is a large step down the clipped gradient, which sometimes overshoots."""
    return Target(energy, energy_and_grad, lambda x: x - 4 * energy_and_grad(x)[1].clamp(-0.05, 0.05))


def quadratic(curvature: Tensor) -> Target:
    """E = sum of curvature * x^2 / 2, whose exp(-E) is a Gaussian of variance 1 / curvature."""
    return _with_distilled(
        lambda x: 0.5 * (curvature * x.square()).sum(-1),
        lambda x: (0.5 * (curvature * x.square()).sum(-1), curvature * x),
    )


def make_domains(
    rows: int = 40, dim: int = 6, classes: int = 3, sources: int = 3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and sources: class blobs that each source shifts its own way."""
    rng = np.random.default_rng(seed)
    label = np.tile(np.arange(classes), sources * rows)[: sources * rows]
    source = np.repeat(np.arange(sources), rows)
    blobs, shifts = 3 * rng.normal(size=(classes, dim)), rng.normal(size=(sources, dim))
    return blobs[label] + shifts[source] + rng.normal(size=(len(label), dim)), label, source


def two_shifted_sources(shift: float = 3.0) -> list[tuple[Tensor, Tensor]]:
    """Features and labels of two sources: axis 0 separates two classes, axis 1 the sources."""
    generator, parts = make_generator(), []
    for sign in (-1.0, 1.0):
        label = torch.arange(200) % 2
        x = torch.randn(200, 5, generator=generator)
        x[:, 0] += 4 * label
        x[:, 1] += sign * shift
        parts.append((x, label))
    return parts


QUICK = {
    "num_steps": 4,
    "max_iter": 30,
    "batch_size": 24,
    "learning_rate": 0.03,
    "train": {"num_steps": 3, "chains": 8},
}
"""Settings of an estimator that fits `make_domains` in a fraction of a second."""


def train(
    network: Network,
    feed: Feed,
    loop: LoopSettings,
    settings: TrainSettings,
    *,
    kl_weight: float = 0.02,
    seed: int = 0,
    **options: Any,
) -> Network:
    """Train a network by Algorithm 1 in the one training loop; `options` are those of `Training`."""
    trainer = Trainer(network, loop, settings, kl_weight, seed)
    rows = loop.batch_size * network.sources
    return Training(trainer, lambda start: feed, rows, progress=False, **options).run()
