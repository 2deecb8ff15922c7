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
    def _steps(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each statistic the rows of all groups in order, and where a value is the last of its kind."""
        pooled = np.concatenate(self.groups)
        orders = [np.argsort(column, kind="stable") for column in pooled.T]
        ordered = [column[order] for column, order in zip(pooled.T, orders)]
        return [(order, np.append(np.diff(x) > 0, True)) for order, x in zip(orders, ordered)]

    def _draw(self, size: int, shares: np.ndarray, random: np.random.Generator) -> float:
        """The largest distance of one window without shift. Only how often each row is drawn matters: both
        distribution functions change at the values of these rows alone."""
        ends = np.cumsum([len(group) for group in self.groups])
        counts = np.zeros((len(self.groups) + 1, ends[-1]))
        for number, (end, drawn) in enumerate(zip(ends, random.multinomial(size, shares))):
            length = len(self.groups[number])
            own = slice(end - length, end)
            counts[number, own] = np.bincount(random.integers(length, size=length), minlength=length)
            counts[-1, own] = np.bincount(random.integers(length, size=drawn), minlength=length)
        counts /= counts.sum(1, keepdims=True)
        steps = [counts[:, order].cumsum(1)[:, last] for order, last in self._steps]
        levels = [np.linspace(0, own.shape[1] - 1, len(GRID)).astype(int) for own in steps]
        design = np.concatenate([own[:, at] for own, at in zip(steps, levels)], axis=1)
        weights = np.append(-_mixture(design[:-1].T, design[-1]), 1.0)
        return float(max(np.abs(weights @ own).max() for own in steps))

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
