"""What z contains: predict from it alone, adapt it with Tent, and compare it with x."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward._util.tables import Table
from sourceward.adaptation.baselines.classifier import ensemble_logits
from sourceward.bench.experiments.base import OFF, Case, Context, Drawing, Outcome, check_targets, experiment
from sourceward.bench.experiments.scores import Scores
from sourceward.bench.protocol.controls import linear_control
from sourceward.bench.protocol.methods import Method
from sourceward.functional.aggregation import log_mixture
from sourceward.nn.heads import HEADS, PrototypeHead

PER_STEP = (1, 16, 64, 128)
POINTS = 500


def check(context: Context) -> None:
    """Refuse a head without prototypes."""
    head = context.training.settings.get("head", "pooled")
    if not issubclass(HEADS[head], PrototypeHead):
        raise InputError(
            f"This experiment uses z in place of x in the head's prototypes, but head {head!r} has none. "
            "Use --set head=pooled or head=prototype."
        )
    check_targets(context)


@experiment("latent", "Predict from z alone; Tent on z with 1, 16, 64 and 128 samples per step.", check=check)
def latent(context: Context) -> Outcome:
    scores = Scores()
    for case in context.cases():
        checkpoint, part = case.checkpoint, case.part
        tent = {
            f"Tent on z, {size} per step": Method("tent_latent", (("batch_size", size),))
            for size in (PER_STEP[1:2] if context.small else PER_STEP)
        }
        rows = {
            OFF: checkpoint.adapt(part, num_steps=0).probabilities,
            "z alone": predict_from_latent(case),
            "z alone, own classifier": classify_latent(case),
            **{name: checkpoint.predict(method, part).probabilities for name, method in tent.items()},
            f"ours, {context.num_steps} steps": checkpoint.adapt(
                part, num_steps=context.num_steps
            ).probabilities,
        }
        for name, probability in rows.items():
            scores.add(name, case.where, case.seed, case.right(probability))
    against = {name: OFF for name in scores.right if name != OFF}
    caption = (
        "Accuracy, %. `z alone` uses the mean of p(z|x) in place of the feature; its own classifier is "
        "logistic regression on the sources' z. See how many samples at once Tent needs; ours needs one."
    )
    return Outcome(
        [scores.table("accuracy, %", against, context.published("latent"), caption)],
        [scores.drawing("latent", against)],
        numbers={"rows": scores.numbers(against)},
    )


@torch.no_grad()
def latent_mean(case: Case, feature: Tensor) -> Tensor:
    """Return the mean of p(z|x), (n, dim)."""
    prior = case.checkpoint.network.prior(feature)
    assert prior is not None
    return prior.mean


@torch.no_grad()
def predict_from_latent(case: Case) -> np.ndarray:
    """Return unadapted probabilities with z in place of x, scaled to the length of a feature."""
    network = case.checkpoint.network
    z = latent_mean(case, case.part.feature)
    z = z * (network.dim**0.5 / z.norm(dim=-1, keepdim=True).clamp_min(1e-12))
    return log_mixture(ensemble_logits(network, z)).exp().cpu().numpy()


def classify_latent(case: Case) -> np.ndarray:
    """Return probabilities of the linear control trained on z, in the network's classes."""
    sources = case.checkpoint.source_part
    z, z_target = (latent_mean(case, part.feature).cpu().numpy() for part in (sources, case.part))
    classifier = linear_control(z, sources.label, sources.dataset.domains)
    order = np.searchsorted(np.unique(sources.label), case.checkpoint.codes)
    return classifier(z_target)[:, order]


@experiment("latent-map", "x against z in two dimensions, coloured by class.", check=check)
def latent_map(context: Context) -> Outcome:
    drawings, rows, numbers = [], [], {}
    count = 60 if context.small else POINTS
    for case in context.first_seed():
        part = case.part.select(np.random.default_rng(0).permutation(len(case.part.label))[:count])
        z = latent_mean(case, part.feature)
        both = {"x": part.feature.cpu().numpy(), "z": z.cpu().numpy()}
        separation = {name: class_separation(points, part.label) for name, points in both.items()}
        rows.append([case.target, *(f"{value:.2f}" for value in separation.values())])
        numbers[case.where] = separation
        drawings.append(_figure(case, {name: tsne(points) for name, points in both.items()}, part.label))
    caption = (
        "Mean distance between class means, relative to the mean distance of samples to the mean of their "
        "class. See whether z separates the classes more than x."
    )
    table = Table(["separation of classes", "x", "z"], rows, caption)
    return Outcome([table], drawings, {"separation": numbers})


def tsne(points: np.ndarray) -> np.ndarray:
    """Return t-SNE in two dimensions, initialised by principal components: (n, 2)."""
    from sklearn.manifold import TSNE

    perplexity = float(min(30, max(2, len(points) // 4)))
    return TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(points)


def class_separation(points: np.ndarray, label: np.ndarray) -> float:
    """Return the distance between class means, relative to that within classes.

    >>> points = np.array([[0.0, 1], [0, -1], [9, 1], [9, -1]])
    >>> class_separation(points, np.array([0, 0, 1, 1]))
    9.0
    """
    codes = np.unique(label)
    means = np.stack([points[label == code].mean(0) for code in codes])
    within = np.mean([np.linalg.norm(points[label == c] - m, axis=1).mean() for c, m in zip(codes, means)])
    gaps = [np.linalg.norm(a - b) for i, a in enumerate(means) for b in means[:i]]
    return float(np.mean(gaps) / max(within, 1e-12)) if gaps else 0.0


def _figure(case: Case, maps: dict[str, np.ndarray], label: np.ndarray) -> Drawing:
    panels: list[dict[str, Any]] = [
        {
            "plot": "classes",
            "points": points,
            "labels": label,
            "names": case.part.dataset.classes,
            "title": f"{case.target}: {name}",
        }
        for name, points in maps.items()
    ]
    caption = (
        f"Target {case.target}, not trained on: t-SNE of features x (left) and of latents z (right), by true "
        "class."
    )
    return Drawing(f"latent-map-{case.name}-{case.target}", caption, (8.0, 4.6), panels)
