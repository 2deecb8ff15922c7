"""Drift: does a window of predictions come from a mixture of the sources?

Each statistic of a sample, the energy of each source and the confidence, has a distribution on held-out
samples of each source. Without shift, a window of production samples comes from a mixture of the sources,
whose shares nobody knows: a single source is as good as all of them. The shares are estimated by least
squares between distribution functions; the quantiles of the window under that mixture are then uniform. Their
Kolmogorov-Smirnov distance from uniform is compared with its bootstrap distribution, in which held-out
samples are drawn again as the reference and as the window, and the shares are estimated again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

DRAWS = 300
"""Bootstrap draws of a critical value."""

GRID = np.linspace(0.01, 0.99, 50)
"""Levels at which distribution functions are compared to estimate shares."""

SMALLEST = 0.2
"""Shares below it may be noise and are left out of a simulation: a mixture of fewer sources has fewer rows of
reference, and the larger critical value is the safe one."""

FIRM = 100.0
"""Weight of the condition that shares add up to one."""


@dataclass(frozen=True)
class Reference:
    """Statistics of held-out samples.

    Args:
        groups: for each source (rows, statistics).
        level: of the test: the share of windows without shift that alarm.
        seed: of the bootstrap.
    """

    groups: Sequence[np.ndarray]
    level: float = 0.05
    seed: int = 0
    _known: dict[tuple, np.ndarray] = field(default_factory=dict)

    @cached_property
    def _sorted(self) -> list[np.ndarray]:
        return [np.sort(group, 0) for group in self.groups]

    @cached_property
    def _grid(self) -> np.ndarray:
        return np.quantile(np.concatenate(self.groups), GRID, axis=0)

    def shares(self, window: np.ndarray) -> np.ndarray:
        """The mixture of sources that a window (rows, statistics) is nearest to: (sources,)."""
        columns = [_distribution(own, self._grid).T.ravel() for own in self._sorted]
        return _mixture(np.column_stack(columns), _distribution(np.sort(window, 0), self._grid).T.ravel())

    def distances(self, window: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Kolmogorov-Smirnov distance of each statistic from the mixture: (statistics,)."""
        ordered = np.sort(window, 0)
        after, before = (
            sum(w * _distribution(own, ordered, side) for w, own in zip(shares, self._sorted))
            for side in ("right", "left")
        )
        upto = np.arange(1, len(ordered) + 1)[:, None] / len(ordered)
        return np.maximum(np.abs(upto - after), np.abs(upto - 1 / len(ordered) - before)).max(0)

    def null(self, rows: int, shares: np.ndarray) -> np.ndarray:
        """Sorted largest distances of windows of this size and mixture without shift: (draws,).

        Shares below `SMALLEST` count as 0. The others are rounded to a tenth, so that similar windows share
        one simulation.
        """
        large = np.where(shares < min(SMALLEST, shares.max()), 0.0, shares)
        key = (rows, *np.round(10 * large / large.sum()).astype(int).tolist())
        if key not in self._known:
            random, rounded = np.random.default_rng([self.seed, *key]), np.array(key[1:]) / sum(key[1:])
            self._known[key] = np.sort([self._draw(rows, rounded, random) for _ in range(DRAWS)])
        return self._known[key]

    @cached_property
    def _ranks(self) -> list[np.ndarray]:
        """For each source (rows, statistics), the ranks of its values among those of all sources."""
        pooled = np.concatenate(self.groups)
        ranks = pooled.argsort(0, kind="stable").argsort(0, kind="stable").astype(float)
        return np.split(ranks, np.cumsum([len(group) for group in self.groups])[:-1])

    def _draw(self, size: int, shares: np.ndarray, random: np.random.Generator) -> float:
        """The largest distance of one window without shift.

        Values that are drawn twice are set apart within their rank, as those of new samples would be: on the
        few values of a small reference alone, a largest distance would be too small.
        """

        def drawn(ranks: np.ndarray, count: int) -> np.ndarray:
            rows = ranks[random.integers(len(ranks), size=count)]
            return rows + random.random(rows.shape)

        counts = random.multinomial(size, shares)
        other = Reference([drawn(own, len(own)) for own in self._ranks])
        window = np.concatenate([drawn(own, count) for own, count in zip(self._ranks, counts)])
        return float(other.distances(window, other.shares(window)).max())

    def test(self, window: np.ndarray) -> "WindowTest":
        """Test one window (rows, statistics)."""
        shares = self.shares(window)
        distances, null = self.distances(window, shares), self.null(len(window), shares)
        critical = float(np.quantile(null, 1 - self.level))
        p_value = (1 + int((null >= distances.max()).sum())) / (1 + len(null))
        return WindowTest(shares, distances, critical, p_value, bool(distances.max() > critical))


@dataclass(frozen=True)
class WindowTest:
    """The test of one window."""

    shares: np.ndarray
    """(sources,): the nearest mixture."""
    distances: np.ndarray
    """(statistics,): Kolmogorov-Smirnov distances."""
    critical: float
    """What the largest distance exceeds in `level` of the windows without shift."""
    p_value: float
    alarm: bool


def alarms_needed(windows: int, level: float = 0.05) -> int:
    """How many of several windows have to alarm before chance is an unlikely reason for it.

    >>> [alarms_needed(windows) for windows in (1, 2, 10, 100)]
    [1, 2, 3, 10]
    """
    from scipy.stats import binom

    return int(binom.ppf(1 - level, windows, level)) + 1


def _distribution(ordered: np.ndarray, points: np.ndarray, side: str = "right") -> np.ndarray:
    """Distribution functions of sorted columns (rows, statistics) at points (n, statistics)."""
    columns = [np.searchsorted(own, at, side) for own, at in zip(ordered.T, points.T)]  # type: ignore[call-overload]
    return np.column_stack(columns) / len(ordered)


def _mixture(functions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Shares, 0 or more and 1 in all, whose mixture of functions (points, sources) is nearest to `wanted`."""
    from scipy.optimize import nnls

    firm = np.full((1, functions.shape[1]), FIRM)
    found, _ = nnls(np.vstack([functions, firm]), np.append(wanted, FIRM))
    return found / found.sum()
