"""Figures from plain data to inline SVG: text stays text, and lines take the colour of the page around them.

A panel is a dictionary: `plot` names a function in `PLOTS`, the rest are its arguments. Colours are blue,
orange and grey mid-tones: they read on white and on black, and to colour-blind eyes; shape or line style
always says the same a second time.
"""

import base64
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.storage import atomic_file, write_whole

BLUE, ORANGE, GREEN, GREY = "#2b8cd6", "#e07b00", "#14a07a", "#8c8c8c"
PURPLE, RED, BROWN = "#8a6fd1", "#d1495b", "#9a7b4f"
STYLES = (
    (BLUE, "-", "o"),
    (ORANGE, "--", "s"),
    (GREEN, ":", "^"),
    (PURPLE, "-.", "D"),
    (RED, (0, (5, 1)), "v"),
    (BROWN, (0, (1, 1)), "P"),
)
INK = "#010203"
"""Stands for the page's own text colour; becomes `currentColor` in SVG."""

NARROWEST = 0.5
"""Points on either side of 0 that a chart of gains shows at least."""

INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
RC = {
    "font.size": 10,
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'

Panel = Mapping[str, Any]


@contextmanager
def _drawn(panels: Sequence[Panel], size: tuple[float, float], ink: str, rows: int = 1) -> Iterator[Any]:
    """Yield a matplotlib figure of panels, under our settings and without touching those of the process."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {**RC, **dict.fromkeys(INKED, ink)}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, dpi=110)
        axes = figure.subplots(rows, len(panels) // rows, squeeze=False)
        for own, panel in zip(axes.flat, panels):
            PLOTS[panel["plot"]](own, **{name: value for name, value in panel.items() if name != "plot"})
        yield figure


def to_svg(panels: Panel | Sequence[Panel], size: tuple[float, float], name: str) -> str:
    """Return panels side by side as an SVG element of `size` inches; `name` is for screen readers.

    It scales to its box and follows the page's colours.
    """
    import matplotlib

    buffer = io.StringIO()
    panels = [panels] if isinstance(panels, Mapping) else panels
    with _drawn(panels, size, INK) as figure, matplotlib.rc_context({"svg.hashsalt": name}):
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{name}">', svg
    )
    return svg.replace(INK, "currentColor")


def save_png(
    panels: Sequence[Panel], size: tuple[float, float], path: Path, rows: int = 1, ink: str = "#222222"
) -> None:
    """Write panels as PNG on white."""
    with _drawn(panels, size, ink, rows) as figure, atomic_file(path) as stream:
        figure.savefig(stream, format="png", facecolor="white")


def save_figure(panels: Sequence[Panel], size: tuple[float, float], path: Path) -> None:
    """Write `path`.svg and `path`.png."""
    svg = to_svg(panels, size, path.name)
    write_whole(path.with_suffix(".svg"), svg.replace("<svg ", f"<svg {NAMESPACES} ", 1))
    save_png(panels, size, path.with_suffix(".png"))


def plot_lines(
    axes: Any,
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    mark: float | None = None,
    from_zero: bool = False,
) -> None:
    """Plot one line per name over `x`; `mark` is a vertical line at the setting in use."""
    if mark is not None:
        axes.axvline(mark, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    for (name, y), (color, dash, marker) in zip(lines.items(), STYLES):
        axes.plot(x, y, color=color, linestyle=dash, marker=marker, markersize=4, label=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if from_zero:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    axes.legend()


def plot_map(
    axes: Any, sources: np.ndarray, points: np.ndarray, right: np.ndarray, *, title: str, limits: np.ndarray
) -> None:
    """Plot sources as a grey cloud, samples as circles where the prediction is right and crosses where wrong.

    Shapes: `sources` (m, 2), `points` (n, 2), `right` (n,), `limits` ((x0, y0), (x1, y1)).
    """
    axes.scatter(*sources.T, s=7, color=GREY, alpha=0.35, linewidths=0)
    axes.scatter(*points[right].T, s=11, color=BLUE, linewidths=0, label="right")
    axes.scatter(*points[~right].T, s=14, color=ORANGE, marker="x", linewidths=1.1, label="wrong")
    axes.set(title=title, xticks=[], yticks=[], xlim=limits[:, 0], ylim=limits[:, 1])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, handletextpad=0.1)


def plot_chain(axes: Any, probability: np.ndarray, energy: np.ndarray) -> None:
    """Plot one sample's probability of the true class (solid) and mean energy (dashed) after each step."""
    axes.plot(probability, color=BLUE, linewidth=2, label="p(true class)")
    axes.plot(energy, color=ORANGE, linewidth=1.4, linestyle="--", label="energy")
    axes.set(ylim=(-0.03, 1.03), yticks=[0, 0.5, 1], xlabel="step")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _named_rows(axes: Any, names: Sequence[str], xlabel: str) -> np.ndarray:
    """Label one row per name, from top to bottom; returns their heights."""
    rows = np.arange(len(names))[::-1]
    axes.set_yticks(rows, names)
    axes.set(ylim=(-0.7, len(names) - 0.3), xlabel=xlabel)
    axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return rows


def plot_gains(
    axes: Any,
    names: Sequence[str],
    gain: Sequence[float],
    gain_low: Sequence[float],
    gain_high: Sequence[float],
    *,
    xlabel: str,
) -> None:
    """Plot a dot with its interval for each name, beside a line at no difference."""
    rows = _named_rows(axes, names, xlabel)
    axes.axvline(0, color=GREY, linewidth=1)
    for row, mid, low, high in zip(rows, gain, gain_low, gain_high):
        color = BLUE if low > 0 else ORANGE if high < 0 else GREY
        axes.plot([low, high], [row, row], color=color, linewidth=2, solid_capstyle="round")
        axes.plot([mid], [row], color=color, marker="o" if mid >= 0 else "s", markersize=6)
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, -NARROWEST), max(right, NARROWEST))


def plot_pairs(
    axes: Any, names: Sequence[str], before: np.ndarray, after: np.ndarray, *, xlabel: str
) -> None:
    """Plot before (hollow) and after (filled) for each name, joined by a line."""
    for row, a, b in zip(_named_rows(axes, names, xlabel), before, after):
        color = BLUE if b >= a else ORANGE
        axes.plot([a, b], [row, row], color=color, linewidth=2)
        axes.plot([b], [row], color=color, marker="o", markersize=6)
        axes.plot([a], [row], color=color, marker="o", markersize=6, markerfacecolor="none")


def plot_expected(
    axes: Any,
    names: Sequence[str],
    value: Sequence[float],
    measured: Sequence[bool],
    *,
    low: float,
    high: float,
    middle: float,
    xlabel: str,
) -> None:
    """Plot a dot for each name, filled where it was measured, over the interval that was expected."""
    axes.axvspan(low, high, color=GREY, alpha=0.18, linewidth=0)
    axes.axvline(middle, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    for row, x, filled in zip(_named_rows(axes, names, xlabel), value, measured):
        color = BLUE if low <= x <= high else ORANGE
        fill = {} if filled else {"markerfacecolor": "none"}
        axes.plot([x], [row], color=color, marker="o" if low <= x <= high else "s", markersize=7, **fill)


def plot_confusion(axes: Any, counts: np.ndarray, classes: Sequence[str], *, title: str) -> None:
    """Plot the share of each true class (row) that got each prediction (column), in per cent."""
    from matplotlib.patches import Rectangle

    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    few = len(classes) <= 10
    for i, j in np.ndindex(share.shape):
        alpha = 0.75 * float(share[i, j])
        color = BLUE if i == j else ORANGE
        axes.add_patch(Rectangle((j - 0.48, i - 0.48), 0.96, 0.96, color=color, alpha=alpha, linewidth=0))
        if few and share[i, j] >= 0.005:
            axes.text(j, i, f"{100 * share[i, j]:.0f}", ha="center", va="center", fontsize=8)
    size, rotation = 9 if few else 6, 90 if max(map(len, classes)) > 2 else 0
    axes.set_xticks(range(len(classes)), classes, rotation=rotation, fontsize=size)
    axes.set_yticks(range(len(classes)), classes, fontsize=size)
    axes.set(title=title, xlim=(-0.5, len(classes) - 0.5), ylim=(len(classes) - 0.5, -0.5), aspect="equal")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def plot_classes(axes: Any, points: np.ndarray, labels: np.ndarray, names: Sequence[str], title: str) -> None:
    """Plot points (n, 2) by class: colour and marker both say which."""
    for code, name in enumerate(names):
        color, _, marker = STYLES[code % len(STYLES)]
        fill = color if code < len(STYLES) else "none"
        own = points[labels == code]
        axes.scatter(*own.T, s=12, marker=marker, facecolor=fill, edgecolor=color, linewidths=0.8, label=name)
    axes.set(title=title, xticks=[], yticks=[])
    if len(names) <= 12 and not axes.figure.legends:  # one for all panels
        handles, shown = axes.get_legend_handles_labels()
        axes.figure.legend(handles, shown, loc="outside lower center", ncols=min(6, len(names)))


def plot_paths(
    axes: Any, cloud: np.ndarray, paths: Sequence[np.ndarray], good: Sequence[bool], *, title: str
) -> None:
    """Plot paths (steps, 2) over a grey cloud, from a hollow circle to a filled one; crosses end failures."""
    axes.scatter(*cloud.T, s=6, color=GREY, alpha=0.3, linewidths=0)
    for path, right in zip(paths, good):
        color = BLUE if right else ORANGE
        axes.plot(*path.T, color=color, linewidth=1.1, alpha=0.9)
        axes.plot(*path[0], color=color, marker="o", markersize=5, markerfacecolor="none")
        axes.plot(*path[-1], color=color, marker="o" if right else "X", markersize=6)
    axes.set(title=title, xticks=[], yticks=[])


def plot_traces(axes: Any, values: np.ndarray, good: Sequence[bool], *, ylabel: str) -> None:
    """Plot values (steps, n) against the step: solid where `good`, dashed elsewhere."""
    for column, fine in zip(values.T, good):
        axes.plot(column, color=BLUE if fine else ORANGE, linestyle="-" if fine else "--", linewidth=1.4)
    axes.set(xlabel="step", ylabel=ylabel)
    axes.xaxis.get_major_locator().set_params(integer=True)


PLOTS: dict[str, Callable[..., None]] = {
    "lines": plot_lines,
    "map": plot_map,
    "chain": plot_chain,
    "gains": plot_gains,
    "pairs": plot_pairs,
    "expected": plot_expected,
    "confusion": plot_confusion,
    "classes": plot_classes,
    "paths": plot_paths,
    "traces": plot_traces,
}


def pixels_png(image: np.ndarray) -> str:
    """Return a uint8 (h, w) image as a data URI."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
