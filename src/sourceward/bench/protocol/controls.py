"""Controls: classifiers trained by ordinary means on the rows and features that heads and energies learn.

`SingleSample` is single-sample generalization (Xiao, Zhen, Shao & Snoek, ICLR 2022) in its simplest form, on
features. The classifier is generated for each test sample: a network reads a class centre of the sources and
the sample and returns a Gaussian over that class's weights. In training each source in turn is held out as
the target, and the class centres come from the others. The posterior of the weights reads the held-out
source's class centre where the prior reads the sample, and the loss is that of variational inference,

    E_q(theta|d_s, d_t) [-log p(y|x, theta)] + KL(q(theta|d_s, d_t) || p(theta|d_s, x)).

A test sample is classified in one forward pass with the prior's mean. Our choices where the paper leaves them
open: one hidden layer, logits = x . theta_c / sqrt(dim), a KL weight of 0.01 and feature
noise of 0.5 for features that are not whitened. The backbone is not trained.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from sourceward.adaptation.base import Unsuitable
from sourceward.bench.protocol.methods import LINEAR
from sourceward.functional import Gaussian, class_centers, kl_divergence, swish

STRENGTHS = (0.001, 0.01, 0.1)
"""Candidates for the inverse regularisation, chosen among by leave-one-domain-out validation."""

Classifier = Callable[[np.ndarray], np.ndarray]
"""Features (n, dim) to probabilities (n, classes), in the order of labels."""


def fit_control(
    name: str, X: np.ndarray, y: np.ndarray, domain: np.ndarray, seed: int
) -> tuple[Classifier, np.ndarray]:
    """Train a control; returns it with the classes that it knows."""
    fit = linear_control if name == LINEAR else SingleSample(seed=seed).fit
    return fit(X, y, domain), np.unique(y)


def linear_control(X: np.ndarray, y: np.ndarray, domain: np.ndarray) -> Classifier:
    """Fit logistic regression, its strength chosen on held-out sources."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt(X.shape[1]) / np.linalg.norm(X - X.mean(0), axis=1).mean()

    def fitted(c: float, rows: np.ndarray) -> LogisticRegression:
        with warnings.catch_warnings():  # stopping early regularises as well
            warnings.simplefilter("ignore", ConvergenceWarning)
            return LogisticRegression(C=c, max_iter=200).fit(X[rows] * scale, y[rows])

    def validated(c: float) -> float:
        parts = [domain == d for d in np.unique(domain)]
        return float(np.mean([fitted(c, ~part).score(X[part] * scale, y[part]) for part in parts]))

    best = max(STRENGTHS, key=validated) if len(np.unique(domain)) > 1 else STRENGTHS[-1]
    model = fitted(best, np.ones(len(y), dtype=bool))
    return lambda rows: model.predict_proba(rows * scale)


class WeightGenerator(nn.Module):
    """(class centre of the sources, sample or centre of the target) to a Gaussian over its weights."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * dim, dim)
        self.mean, self.std = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, source: Tensor, target: Tensor) -> Gaussian:
        hidden = swish(self.hidden(torch.cat([source, target], dim=-1)))
        return Gaussian(self.mean(hidden), 0.1 + 0.9 * softplus(self.std(hidden)))


def held_out_loss(
    generate: WeightGenerator,
    feature: Tensor,
    label: Tensor,
    source_centers: Tensor,
    target_centers: Tensor,
    kl: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the loss on one held-out source.

    Args:
        feature, label: (batch, dim) and (batch,) of the held-out source.
        source_centers, target_centers: (classes, dim) of the other sources and of the held-out one.
    """
    posterior = generate(source_centers, target_centers)
    weights = posterior.sample(generator)
    logits = feature @ weights.T / math.sqrt(feature.shape[1])
    prior = generate(*_pairs(source_centers, feature))
    divergence = kl_divergence(Gaussian(*(part.expand_as(prior.mean) for part in posterior)), prior)
    return cross_entropy(logits, label) + kl * divergence.sum(-1).mean()


def classify(generate: WeightGenerator, feature: Tensor, source_centers: Tensor) -> Tensor:
    """Return probabilities (batch, classes), each row by its own classifier."""
    weights = generate(*_pairs(source_centers, feature)).mean
    return (torch.einsum("bd,bcd->bc", feature, weights) / math.sqrt(feature.shape[1])).softmax(-1)


def _pairs(source_centers: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
    """Pair every sample with every class centre: twice (batch, classes, dim)."""
    shape = (len(feature), *source_centers.shape)
    return source_centers.expand(shape), feature.unsqueeze(1).expand(shape)


@dataclass(frozen=True)
class SingleSample:
    """The method with its settings: AdamW with a cosine schedule, the weight of the KL (summed over
    dimensions and classes), and noise on features relative to their root mean square."""

    max_iter: int = 300
    batch_size: int = 128
    learning_rate: float = 3e-3
    weight_decay: float = 5e-4
    kl: float = 0.01
    feature_noise: float = 0.5
    seed: int = 0

    def fit(self, X: np.ndarray, y: np.ndarray, domain: np.ndarray) -> Classifier:
        """Train on the sources; returns a function from rows to probabilities, in the order of labels."""
        classes, label = np.unique(y, return_inverse=True)
        names = np.unique(domain)
        if len(names) < 2:
            raise Unsuitable(
                f"Single-sample generalization holds out a source in training and needs 2 or more sources, "
                f"but got {len(names)}."
            )
        shift = X.mean(0)
        scale = math.sqrt(X.shape[1]) / np.linalg.norm(X - shift, axis=1).mean()

        def scaled(rows: np.ndarray) -> Tensor:
            return torch.from_numpy(((rows - shift) * scale).astype(np.float32))

        parts = [(scaled(X[domain == n]), torch.from_numpy(label[domain == n])) for n in names]
        generate = self._train(parts, len(classes))
        together = (torch.cat([x for x, _ in parts]), torch.cat([t for _, t in parts]))
        (centers,) = filled_centers([together], len(classes))

        @torch.no_grad()
        def predict(rows: np.ndarray) -> np.ndarray:
            return torch.cat([classify(generate, part, centers) for part in scaled(rows).split(512)]).numpy()

        return predict

    def _train(self, parts: list[tuple[Tensor, Tensor]], classes: int) -> WeightGenerator:
        generator = torch.Generator().manual_seed(self.seed)
        generate = WeightGenerator(parts[0][0].shape[1])
        for layer in (generate.hidden, generate.mean, generate.std):
            bound = layer.in_features**-0.5
            for parameter in layer.parameters():
                parameter.data.copy_(torch.rand(parameter.shape, generator=generator) * 2 * bound - bound)
        optimizer = torch.optim.AdamW(
            generate.parameters(), self.learning_rate, weight_decay=self.weight_decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.max_iter)
        for iteration in range(self.max_iter):
            batch = [self._draw(*part, generator) for part in parts]
            centers = filled_centers(batch, classes)
            target = iteration % len(parts)
            others = torch.stack([c for i, c in enumerate(centers) if i != target]).mean(0)
            loss = held_out_loss(generate, *batch[target], others, centers[target], self.kl, generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return generate.eval()

    def _draw(self, x: Tensor, label: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(x), (self.batch_size,), generator=generator)
        noise = torch.randn(self.batch_size, x.shape[1], generator=generator)
        return x[rows] + self.feature_noise * noise, label[rows]


def filled_centers(parts: list[tuple[Tensor, Tensor]], classes: int) -> Tensor:
    """Return the class centres of each part, (parts, classes, dim); those of a missing class are the mean
    over the parts that have it."""
    found = [class_centers(x[None], label[None], classes) for x, label in parts]
    centers = torch.cat([c for c, _ in found])
    has = torch.cat([n for _, n in found]).unsqueeze(-1) > 0
    return torch.where(has, centers, centers.sum(0) / has.sum(0).clamp_min(1))
