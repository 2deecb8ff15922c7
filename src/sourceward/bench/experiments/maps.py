"""Where samples go: maps of a target before and after, and single walks, successes and failures."""

from typing import Any

import numpy as np

from sourceward.bench.experiments.base import Asked, Context, Drawing, Outcome, experiment
from sourceward.report.page import Table

CLOUD, SHOWN, WALKS = 500, 300, 4


@experiment("maps", "Target features in two dimensions before and after adaptation, with the sources.")
def maps(context: Context) -> Outcome:
    drawings, rows, numbers = [], [], {}
    for asked in context.checkpoints():
        if asked.seed != context.seeds[0]:
            continue
        cloud, flat = plane(asked)
        before, after = (asked.checkpoint.run_chain(asked.part, num_steps=k) for k in (0, context.num_steps))
        right = [
            asked.checkpoint.codes[a.probabilities.argmax(1)] == asked.part.label for a in (before, after)
        ]
        ends = [flat(a.features.mean(1)) for a in (before, after)]
        gap = [float(np.linalg.norm(points.mean(0) - cloud.mean(0))) for points in ends]
        numbers[asked.place] = {"distance_before": gap[0], "distance_after": gap[1]}
        rows.append(
            [
                asked.target,
                f"{100 * right[0].mean():.1f}",
                f"{100 * right[1].mean():.1f}",
                f"{gap[0]:.2f}",
                f"{gap[1]:.2f}",
            ]
        )
        drawings.append(_map_figure(asked, cloud, ends, right))
    header = ["target", "before, %", "after, %", "distance to the sources' middle, before", "after"]
    caption = "Distances are between means on the map. See whether the target moves toward the sources."
    return Outcome([Table(header, rows, caption)], drawings, {"targets": numbers})


@experiment("trajectories", "Single walks on the map: samples that were saved, and samples that were lost.")
def trajectories(context: Context) -> Outcome:
    drawings, rows, numbers = [], [], {}
    for asked in context.checkpoints():
        if asked.seed != context.seeds[0]:
            continue
        saved, lost = saved_and_lost_rows(asked, context.num_steps)
        numbers[asked.place] = {"saved": len(saved), "lost": len(lost)}
        rows.append([asked.target, f"{len(asked.part.label):,}", f"{len(saved):,}", f"{len(lost):,}"])
        picked = np.concatenate([saved[:WALKS], lost[:WALKS]])
        if len(picked):
            good = [True] * len(saved[:WALKS]) + [False] * len(lost[:WALKS])
            drawings.append(_walk_figure(asked, picked.astype(int), good, context.num_steps))
    caption = (
        "Saved: wrong before, right after. Lost: the other way round. The figures show the largest changes."
    )
    return Outcome(
        [Table(["target", "samples", "saved", "lost"], rows, caption)], drawings, {"targets": numbers}
    )


def plane(asked: Asked) -> tuple[np.ndarray, Any]:
    """A map fitted on the sources alone: some of their points on it, and how to put others there."""
    from sklearn.decomposition import PCA

    network, part = asked.checkpoint.network, asked.checkpoint.source_part
    source = network.raw(part.feature).cpu().numpy()
    pca = PCA(2, random_state=0).fit(source)
    rows = np.random.default_rng(0).permutation(len(source))[:CLOUD]
    return pca.transform(source[rows]), pca.transform


def saved_and_lost_rows(asked: Asked, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows by the change of the true class's probability, largest first."""
    checkpoint, part = asked.checkpoint, asked.part
    before, after = (checkpoint.run_chain(part, num_steps=k).probabilities for k in (0, num_steps))
    right = [checkpoint.codes[p.argmax(1)] == part.label for p in (before, after)]
    own = checkpoint.numbers(part.label)
    change = (after - before)[np.arange(len(own)), own]
    saved, lost = np.flatnonzero(right[1] & ~right[0]), np.flatnonzero(right[0] & ~right[1])
    return saved[np.argsort(-change[saved])], lost[np.argsort(change[lost])]


def walk_of(asked: Asked, rows: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (steps + 1, n, dim) as the mean over sources, p(true class) and mean energy, (steps + 1, n)."""
    from sourceward.bench.checkpoints import Part

    checkpoint = asked.checkpoint
    part = Part(asked.part.dataset.select(rows), asked.part.feature[rows.tolist()])
    own = checkpoint.numbers(part.label)
    answers = [checkpoint.run_chain(part, num_steps=k) for k in range(num_steps + 1)]
    points = np.stack([answer.features.mean(1) for answer in answers])
    p_true = np.stack([answer.probabilities[np.arange(len(own)), own] for answer in answers])
    return points, p_true, np.stack([answer.energy_after.mean(1) for answer in answers])


def _map_figure(asked: Asked, cloud: np.ndarray, ends: list[np.ndarray], right: list[np.ndarray]) -> Drawing:
    from sourceward.report import figures

    limits = np.percentile(np.concatenate([cloud, *ends]), [0.2, 99.8], axis=0)
    rows = np.random.default_rng(0).permutation(len(ends[0]))[:SHOWN]

    def draw(figure: Any) -> None:
        for axes, name, points, good in zip(figure.subplots(1, 2), ("before", "after"), ends, right):
            title = f"{asked.target}, {name}: {100 * good.mean():.0f} % right"
            figures.draw_map(axes, cloud, points[rows], good[rows], title=title, limits=limits)

    caption = (
        f"Target {asked.target} on the two principal components of the sources. Grey: source samples. Blue "
        "circles are "
        "right, orange crosses wrong. After adaptation a point is the mean of its walks toward all sources."
    )
    return Drawing(f"map-{asked.name}-{asked.target}", caption, (8.0, 4.0), draw)


def _walk_figure(asked: Asked, picked: np.ndarray, good: list[bool], num_steps: int) -> Drawing:
    from sourceward.report import figures

    cloud, flat = plane(asked)
    points, p_true, energy = walk_of(asked, picked, num_steps)
    walks = [flat(points[:, i]) for i in range(len(picked))]

    def draw(figure: Any) -> None:
        left, middle, right = figure.subplots(1, 3)
        figures.draw_walks(left, cloud, walks, good, title=f"walks, target {asked.target}")
        for axes, values, label in ((middle, p_true, "p(true class)"), (right, energy, "mean energy")):
            for i, fine in enumerate(good):
                color, dash = (figures.BLUE, "-") if fine else (figures.ORANGE, "--")
                axes.plot(values[:, i], color=color, linestyle=dash, linewidth=1.4)
            axes.set(xlabel="step", ylabel=label)
            axes.xaxis.get_major_locator().set_params(integer=True)

    caption = (
        f"Target {asked.target}. Blue, solid: saved. Orange, dashed: lost. The energy falls along both: it "
        "says that a sample looks more like the sources, not that it kept its class. From step 1 on it also "
        "weighs the votes, where `aggregation` is `energy`."
    )
    return Drawing(f"trajectories-{asked.name}-{asked.target}", caption, (11.0, 3.4), draw)
