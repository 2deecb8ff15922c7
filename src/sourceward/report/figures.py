"""Figures from arrays to inline SVG: text stays text, ink takes the colour of the page around it.

`draw_*` put one picture on matplotlib axes; `to_svg` turns a figure into a string for `page.render`.
Colours are blue, orange and grey mid-tones: they read on white and on black, and to colour-blind eyes;
shape or line style always says the same a second time.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

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
"""Points on either side of no difference that a chart of gains shows at least: less is no news."""

RC = {
    "font.size": 10,
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


@contextmanager
def style(ink: str = INK) -> Iterator[Any]:
    """matplotlib.figure.Figure under our settings, without touching those of the process."""
    import matplotlib
    from matplotlib.figure import Figure

    names = (
        "text.color",
        "axes.edgecolor",
        "axes.labelcolor",
        "axes.titlecolor",
        "xtick.color",
        "ytick.color",
    )
    settings: Any = {**RC, **dict.fromkeys(names, ink)}
    with matplotlib.rc_context(settings):
        yield Figure


def to_svg(draw: Callable[[Any], None], size: tuple[float, float], name: str) -> str:
    """Draw on fresh axes of `size` inches and return the SVG element; `name` is what a screen reader says."""
    with style() as figure_type:
        figure = figure_type(figsize=size)
        draw(figure.subplots())
        return figure_svg(figure, name)


def figure_svg(figure: Any, name: str) -> str:
    """A matplotlib figure as an SVG element that scales to its box and follows the page's colours."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{name}">', svg
    )
    return svg.replace(INK, "currentColor")


def draw_lines(
    axes: Any,
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    mark: float | None = None,
) -> None:
    """One line per name over `x`; `mark` is a vertical line at the setting in use."""
    if mark is not None:
        axes.axvline(mark, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    for (name, y), (color, dash, marker) in zip(lines.items(), STYLES):
        axes.plot(x, y, color=color, linestyle=dash, marker=marker, markersize=4, label=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    axes.legend()


def draw_map(
    axes: Any, sources: np.ndarray, points: np.ndarray, right: np.ndarray, *, title: str, limits: np.ndarray
) -> None:
    """Sources as a grey cloud; samples on top, circles where the answer is right and crosses where wrong.

    Shapes: `sources` (m, 2), `points` (n, 2), `right` (n,), `limits` ((x0, y0), (x1, y1)).
    """
    axes.scatter(*sources.T, s=7, color=GREY, alpha=0.35, linewidths=0)
    axes.scatter(*points[right].T, s=11, color=BLUE, linewidths=0, label="right")
    axes.scatter(*points[~right].T, s=14, color=ORANGE, marker="x", linewidths=1.1, label="wrong")
    axes.set(title=title, xticks=[], yticks=[], xlim=limits[:, 0], ylim=limits[:, 1])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, handletextpad=0.1)


def draw_path(axes: Any, probability: np.ndarray, energy: np.ndarray) -> None:
    """One sample's walk: probability of the true class (solid) and mean energy (dashed) after each step."""
    axes.plot(probability, color=BLUE, linewidth=2, label="p(true class)")
    axes.plot(energy, color=ORANGE, linewidth=1.4, linestyle="--", label="energy")
    axes.set(ylim=(-0.03, 1.03), yticks=[0, 0.5, 1], xlabel="step")
    axes.xaxis.get_major_locator().set_params(integer=True)


def draw_gains(
    axes: Any, names: Sequence[str], gains: np.ndarray, low: np.ndarray, high: np.ndarray, *, xlabel: str
) -> None:
    """A dot for each name, with its interval, beside the line of no difference. Read from top to bottom."""
    rows = np.arange(len(names))[::-1]
    axes.axvline(0, color=GREY, linewidth=1)
    for row, gain, a, b in zip(rows, gains, low, high):
        color = BLUE if a > 0 else ORANGE if b < 0 else GREY
        axes.plot([a, b], [row, row], color=color, linewidth=2, solid_capstyle="round")
        axes.plot([gain], [row], color=color, marker="o" if gain >= 0 else "s", markersize=6)
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, -NARROWEST), max(right, NARROWEST))
    axes.set_yticks(rows, names)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlabel(xlabel)
    axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def draw_pairs(
    axes: Any, names: Sequence[str], before: np.ndarray, after: np.ndarray, *, xlabel: str
) -> None:
    """Before (hollow) and after (filled) for each name, joined by a line. Read from top to bottom."""
    rows = np.arange(len(names))[::-1]
    for row, a, b in zip(rows, before, after):
        color = BLUE if b >= a else ORANGE
        axes.plot([a, b], [row, row], color=color, linewidth=2)
        axes.plot([b], [row], color=color, marker="o", markersize=6)
        axes.plot([a], [row], color=color, marker="o", markersize=6, markerfacecolor="none")
    axes.set_yticks(rows, names)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlabel(xlabel)
    axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def draw_confusion(axes: Any, counts: np.ndarray, classes: Sequence[str], *, title: str) -> None:
    """Share of each true class (row) that was given each answer (column); numbers in per cent."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    for i in range(len(classes)):
        for j in range(len(classes)):
            color = BLUE if i == j else ORANGE
            axes.add_patch(_square(j, i, color, float(share[i, j])))
            if len(classes) <= 10 and share[i, j] >= 0.005:
                axes.text(j, i, f"{100 * share[i, j]:.0f}", ha="center", va="center", fontsize=8)
    size = 9 if len(classes) <= 10 else 6
    turned = 90 if max(map(len, classes)) > 2 else 0
    axes.set_xticks(range(len(classes)), classes, rotation=turned, fontsize=size)
    axes.set_yticks(range(len(classes)), classes, fontsize=size)
    axes.set(title=title, xlim=(-0.5, len(classes) - 0.5), ylim=(len(classes) - 0.5, -0.5), aspect="equal")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _square(x: float, y: float, color: str, share: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=color, alpha=0.75 * share, linewidth=0)


def draw_classes(axes: Any, points: np.ndarray, labels: np.ndarray, names: Sequence[str], title: str) -> None:
    """Points (n, 2) by class: colour and marker both say which."""
    for code, name in enumerate(names):
        color, _, marker = STYLES[code % len(STYLES)]
        fill = color if code < len(STYLES) else "none"
        own = points[labels == code]
        axes.scatter(*own.T, s=12, marker=marker, facecolor=fill, edgecolor=color, linewidths=0.8, label=name)
    axes.set(title=title, xticks=[], yticks=[])


def draw_walks(
    axes: Any, cloud: np.ndarray, walks: Sequence[np.ndarray], good: Sequence[bool], *, title: str
) -> None:
    """Walks (steps, 2) over a grey cloud: from a hollow circle to a filled one; crosses end the failures."""
    axes.scatter(*cloud.T, s=6, color=GREY, alpha=0.3, linewidths=0)
    for walk, right in zip(walks, good):
        color = BLUE if right else ORANGE
        axes.plot(*walk.T, color=color, linewidth=1.1, alpha=0.9)
        axes.plot(*walk[0], color=color, marker="o", markersize=5, markerfacecolor="none")
        axes.plot(*walk[-1], color=color, marker="o" if right else "X", markersize=6)
    axes.set(title=title, xticks=[], yticks=[])


def save_figure(draw: Callable[[Any], None], size: tuple[float, float], path: Any) -> str:
    """Draw on a fresh figure of `size` inches; write `path`.svg and `path`.png; return the SVG element.

    `draw` gets the figure and makes its own axes.
    """
    from pathlib import Path

    path = Path(path)
    with style() as figure_type:
        figure = figure_type(figsize=size)
        draw(figure)
        svg = figure_svg(figure, path.name)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    path.with_suffix(".svg").write_text(svg.replace("<svg ", f"<svg {spaces} ", 1))
    with style("#222222") as figure_type:
        figure = figure_type(figsize=size, dpi=110, facecolor="white")
        draw(figure)
        figure.savefig(path.with_suffix(".png"))
    return svg


def pixels_png(image: np.ndarray) -> str:
    """A uint8 (h, w) picture as a data URI, one pixel per pixel."""
    import base64

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
