"""Where samples end: a target's features in two dimensions before and after adaptation."""

from collections.abc import Callable

import numpy as np

from sourceward._util.tables import Table
from sourceward.bench.experiments.base import Case, Context, Drawing, Outcome, experiment

CLOUD, SHOWN = 500, 300
"""Points of the sources and of the target on a map."""


@experiment("maps", "Target features in two dimensions before and after adaptation, with the sources.")
def maps(context: Context) -> Outcome:
    drawings, rows, numbers = [], [], {}
    for case in context.first_seed():
        cloud, project = source_plane(case)
        results = [case.checkpoint.adapt(case.part, num_steps=k) for k in (0, context.num_steps)]
        right = [case.right(result.probabilities) for result in results]
        ends = [project(result.features.mean(1)) for result in results]
        gap = [float(np.linalg.norm(points.mean(0) - cloud.mean(0))) for points in ends]
        numbers[case.where] = {"distance_before": gap[0], "distance_after": gap[1]}
        shares = [f"{100 * r.mean():.1f}" for r in right]
        rows.append([case.target, *shares, *(f"{value:.2f}" for value in gap)])
        drawings.append(_figure(case, cloud, ends, right))
    header = ["target", "before, %", "after, %", "distance to the mean of the sources, before", "after"]
    caption = "Distances are between means on the map. See whether the target comes closer to the sources."
    return Outcome([Table(header, rows, caption)], drawings, {"targets": numbers})


def source_plane(case: Case) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Fit two principal components on the sources; returns some of their points, and the projection."""
    from sklearn.decomposition import PCA

    source = case.checkpoint.network.raw(case.checkpoint.source_part.feature).cpu().numpy()
    pca = PCA(2, random_state=0).fit(source)
    rows = np.random.default_rng(0).permutation(len(source))[:CLOUD]
    return pca.transform(source[rows]), pca.transform


def map_limits(*points: np.ndarray) -> np.ndarray:
    """Return the corners of a map that leaves out a few far points: ((x0, y0), (x1, y1))."""
    return np.percentile(np.concatenate(points), [0.2, 99.8], axis=0)


def _figure(case: Case, cloud: np.ndarray, ends: list[np.ndarray], right: list[np.ndarray]) -> Drawing:
    rows = np.random.default_rng(0).permutation(len(ends[0]))[:SHOWN]
    panels = [
        {
            "plot": "map",
            "sources": cloud,
            "points": points[rows],
            "right": good[rows],
            "title": f"{case.target}, {name}: {100 * good.mean():.0f} % right",
            "limits": map_limits(cloud, *ends),
        }
        for name, points, good in zip(("before", "after"), ends, right)
    ]
    caption = (
        f"Target {case.target} on the two principal components of the sources. Grey: source samples. Blue "
        "circles are right, orange crosses wrong. After adaptation a point is the mean over the sources."
    )
    return Drawing(f"map-{case.name}-{case.target}", caption, (8.0, 4.0), panels)
