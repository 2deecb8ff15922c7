"""What z knows: predict from it alone, adapt it with Tent, and look at it beside x."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.adaptation.baselines.classifier import ensemble_logits
from sourceward.bench.controls import linear_control
from sourceward.bench.experiments.base import Asked, Context, Drawing, Outcome, check_targets, experiment
from sourceward.bench.experiments.scores import Scores
from sourceward.bench.specs import Spec
from sourceward.functional.aggregation import log_mixture
from sourceward.nn.heads import HEADS, PrototypeHead
from sourceward.report.page import Table

PER_STEP = (1, 16, 64, 128)
POINTS = 500


def check(context: Context) -> None:
    """Refuse a head without prototypes."""
    head = context.training.settings.get("head", "pooled")
    if not issubclass(HEADS[head], PrototypeHead):
        raise InputError(
            f"This experiment looks at z as the head's prototypes see it, but head {head!r} has none. "
            "Use --set head=pooled or head=prototype."
        )
    check_targets(context)


@experiment("latent", "Predict from z alone; Tent on z with 1, 16, 64 and 128 samples per step.", check=check)
def latent(context: Context) -> Outcome:
    scores, none = Scores(), "no adaptation"
    for asked in context.checkpoints():
        checkpoint, part = asked.checkpoint, asked.part
        answers = {
            none: checkpoint.run_chain(part, num_steps=0).probabilities,
            "z alone": predict_from_latent(asked),
            "z alone, a classifier of its own": classify_latent(asked),
            **{
                f"Tent on z, {size} per step": checkpoint.answer(
                    Spec("tent_latent", (("batch_size", size),)), part
                ).probabilities
                for size in (PER_STEP[1:2] if context.small else PER_STEP)
            },
            f"ours, {context.num_steps} steps": checkpoint.run_chain(
                part, num_steps=context.num_steps
            ).probabilities,
        }
        for name, probability in answers.items():
            said = checkpoint.codes[probability.argmax(1)]
            scores.add(name, asked.place, asked.seed, said == part.label)
    against = {name: none for name in scores.right if name != none}
    caption = (
        "Accuracy, %. `z alone` puts the mean of p(z|x) where the feature was; a classifier of its own is "
        "logistic regression trained on the sources' z. See how many samples Tent needs at once, where ours "
        "needs one."
    )
    return Outcome(
        [scores.table("accuracy, %", against, context.published("latent"), caption)],
        [scores.drawing("latent", against)],
        numbers={"rows": scores.numbers(against)},
    )


@torch.no_grad()
def predict_from_latent(asked: Asked) -> np.ndarray:
    """The unadapted vote with z in place of x, brought to the length of a feature."""
    network = asked.checkpoint.network
    prior = network.prior(asked.part.feature)
    assert prior is not None
    z = prior.mean
    z = z * (network.dim**0.5 / z.norm(dim=-1, keepdim=True).clamp_min(1e-12))
    return log_mixture(ensemble_logits(network, z)).exp().cpu().numpy()


@torch.no_grad()
def classify_latent(asked: Asked) -> np.ndarray:
    """What z tells a classifier that is trained on it: the linear control on z, in the network's classes."""
    checkpoint, sources = asked.checkpoint, asked.checkpoint.source_part

    def latents(feature: Tensor) -> np.ndarray:
        prior = checkpoint.network.prior(feature)
        assert prior is not None
        return prior.mean.cpu().numpy()

    answer = linear_control(latents(sources.feature), sources.label, sources.dataset.domains)
    order = np.searchsorted(np.unique(sources.label), checkpoint.codes)
    return answer(latents(asked.part.feature))[:, order]


@experiment("latent-map", "x against z in two dimensions, coloured by class.", check=check)
def latent_map(context: Context) -> Outcome:
    drawings, rows, numbers = [], [], {}
    for asked in context.checkpoints():
        if asked.seed != context.seeds[0]:
            continue
        picked = np.random.default_rng(0).permutation(len(asked.part.label))[
            : 60 if context.small else POINTS
        ]
        feature = asked.part.feature[torch.from_numpy(picked).to(asked.part.feature.device)]
        with torch.no_grad():
            prior = asked.checkpoint.network.prior(feature)
        assert prior is not None
        label = asked.part.label[picked]
        both = {"x": feature.cpu().numpy(), "z": prior.mean.cpu().numpy()}
        separation = {name: class_separation(points, label) for name, points in both.items()}
        rows.append([asked.target, *(f"{value:.2f}" for value in separation.values())])
        numbers[asked.place] = separation
        drawings.append(_figure(asked, {name: flat_map(points) for name, points in both.items()}, label))
    caption = (
        "Mean distance between class means, in units of the mean distance of samples to the mean of their "
        "class. "
        "See whether z holds the classes further apart than x."
    )
    return Outcome(
        [Table(["separation of classes", "x", "z"], rows, caption)], drawings, {"separation": numbers}
    )


def flat_map(points: np.ndarray) -> np.ndarray:
    """t-SNE in two dimensions, from the principal components on: (n, 2)."""
    from sklearn.manifold import TSNE

    perplexity = float(min(30, max(2, len(points) // 4)))
    return TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(points)


def class_separation(points: np.ndarray, label: np.ndarray) -> float:
    """Between class means, relative to within classes.

    >>> points = np.array([[0.0, 1], [0, -1], [9, 1], [9, -1]])
    >>> class_separation(points, np.array([0, 0, 1, 1]))
    9.0
    """
    codes = np.unique(label)
    means = np.stack([points[label == code].mean(0) for code in codes])
    within = np.mean([np.linalg.norm(points[label == c] - m, axis=1).mean() for c, m in zip(codes, means)])
    gaps = [np.linalg.norm(a - b) for i, a in enumerate(means) for b in means[:i]]
    return float(np.mean(gaps) / max(within, 1e-12)) if gaps else 0.0


def _figure(asked: Asked, maps: dict[str, np.ndarray], label: np.ndarray) -> Drawing:
    from sourceward.report import figures

    classes = asked.part.dataset.classes

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2)
        for axes, (name, points) in zip(panels, maps.items()):
            figures.draw_classes(axes, points, label, classes, f"{asked.target}: {name}")
        if len(classes) <= 12:
            handles, names = panels[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside lower center", ncols=min(6, len(classes)))

    caption = (
        f"Target {asked.target}, never seen: t-SNE of features x (left) and of latents z (right), by true "
        "class."
    )
    return Drawing(f"latent-map-{asked.name}-{asked.target}", caption, (8.0, 4.6), draw)
