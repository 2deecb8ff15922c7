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
STYLES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, ":", "^"))
INK = "#010203"
"""Stands for the page's own text colour; becomes `currentColor` in SVG."""

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


def pixels_png(image: np.ndarray) -> str:
    """A uint8 (h, w) picture as a data URI, one pixel per pixel."""
    import base64

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
