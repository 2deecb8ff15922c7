"""Where samples end: a target's features in two dimensions before adaptation and after it, by source."""

from collections.abc import Callable

import numpy as np

from sourceward._util.tables import Table
from sourceward.bench.experiments.base import Case, Context, Drawing, Outcome, experiment

CLOUD, SHOWN = 250, 300
"""Points of each source and of the target on a map."""


@experiment("maps", "Target features in two dimensions before adaptation, and after it to each source.")
def maps(context: Context) -> Outcome:
    drawings, rows, numbers = [], [], {}
    for case in context.first_seed():
        clouds, project = source_plane(case)
        before, after = (case.checkpoint.adapt(case.part, num_steps=k) for k in (0, context.num_steps))
        start, found = project(before.features.mean(1)), {}
        panels = [("before", np.concatenate(list(clouds.values())), start, case.right(before.probabilities))]
        for i, (source, cloud) in enumerate(clouds.items()):
            end = project(after.features[:, i])
            gap = [float(np.linalg.norm(points.mean(0) - cloud.mean(0))) for points in (start, end)]
            right = case.right(after.per_source[:, i])
            found[source] = {"distance_before": gap[0], "distance_after": gap[1]}
            own = case.right(before.per_source[:, i])
            shares = [f"{100 * part.mean():.1f}" for part in (own, right)]
            rows.append([case.target, source, *shares, *(f"{value:.2f}" for value in gap)])
            panels.append((f"adapted to {source}", cloud, end, right))
        numbers[case.where] = found
        drawings.append(_figure(case, panels))
    header = ["target", "source", "before, %", "after, %", "distance to the source's mean, before", "after"]
    caption = "Distances are between means on the map. See whether the target comes closer to each source."
    return Outcome([Table(header, rows, caption)], drawings, {"targets": numbers})


def source_plane(case: Case) -> tuple[dict[str, np.ndarray], Callable[[np.ndarray], np.ndarray]]:
    """Fit two principal components on the sources; returns some points of each, and the projection."""
    from sklearn.decomposition import PCA

    part = case.checkpoint.source_part
    source = case.checkpoint.network.raw(part.feature).cpu().numpy()
    pca, rng, clouds = PCA(2, random_state=0).fit(source), np.random.default_rng(0), {}
    for name in case.checkpoint.sources:
        rows = np.flatnonzero(part.dataset.domains == part.dataset.domain_names.index(name))
        clouds[name] = pca.transform(source[rng.permutation(rows)[:CLOUD]])
    return clouds, pca.transform


def map_limits(*points: np.ndarray) -> np.ndarray:
    """Return the corners of a map that leaves out a few far points: ((x0, y0), (x1, y1))."""
    return np.percentile(np.concatenate(points), [0.2, 99.8], axis=0)


def _figure(case: Case, shown: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]) -> Drawing:
    rows = np.random.default_rng(0).permutation(len(shown[0][2]))[:SHOWN]
    limits = map_limits(*(points for _, cloud, end, _ in shown for points in (cloud, end)))
    panels = [
        {
            "plot": "map",
            "sources": cloud,
            "points": points[rows],
            "right": good[rows],
            "title": f"{name}: {100 * good.mean():.0f} % right",
            "limits": limits,
        }
        for name, cloud, points, good in shown
    ]
    caption = (
        f"Target {case.target} on the two principal components of the sources, before adaptation and after "
        "it to each source. Grey: samples of all sources, then of that source. Blue circles are right, "
        "orange crosses wrong."
    )
    return Drawing(f"map-{case.name}-{case.target}", caption, (3.6 * len(panels), 3.8), panels)
