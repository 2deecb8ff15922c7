"""What a notebook shows of a result: a small plot of the chain, and the first samples."""

from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sourceward.adaptation.base import AdaptationResult

ROWS, CHAINS = 10, 8
"""Samples of the table, and of the plot of their chains."""

COLORS = ("#2b8cd6", "#e07b00", "#14a07a", "#8a6fd1", "#d1495b", "#9a7b4f")
"""Of the sources, in turn: they read on white and on black."""

WIDTH, HEIGHT, EDGE = 320, 200, 12


def result_html(result: "AdaptationResult") -> str:
    """The lines of `print(result)`, a plot of the chain where steps were taken, and the first samples."""
    head = "".join(f"<th>{name}</th>" for name in ("", "class", "probability", "trust", "status"))
    rows = "".join(
        f"<tr><td>{i}</td><td>{result.label[i]}</td><td>{result.probabilities[i].max():.3f}</td>"
        f"<td>{result.trust[i]:.3f}</td><td>{result.status[i]}</td></tr>"
        for i in range(min(len(result), ROWS))
    )
    lines = escape(repr(result)).replace("\n", "<br>")
    return f"<p>{lines}</p>{chain_svg(result)}<table><tr>{head}</tr>{rows}</table>"


def chain_svg(result: "AdaptationResult") -> str:
    """A plot of the chains as SVG; '' where no step was taken.

    With a recorded trajectory: the first samples along their chains, in two principal components, a colour
    for each source. Without: the mean energy of each source before and after the steps.
    """
    if not len(result) or not result.steps.any():
        return ""
    if result.trajectory is not None:
        paths = result.trajectory[:CHAINS].transpose(0, 2, 1, 3)  # (samples, sources, steps + 1, dim)
        flat = paths.reshape(-1, paths.shape[-1]) - paths.reshape(-1, paths.shape[-1]).mean(0)
        plane = np.linalg.svd(flat, full_matrices=False)[2][:2]
        points = (flat @ plane.T).reshape(*paths.shape[:3], -1)
        lines = [(source, own[source]) for own in points for source in range(points.shape[1])]
        caption = (
            f"The chains of {len(points)} samples in two principal components, from the hollow circle on."
        )
    else:
        means = np.stack([result.energy_before.mean(0), result.energy_after.mean(0)], 1)
        lines = [(source, np.column_stack([[0, 1], own])) for source, own in enumerate(means)]
        first, last = means.mean(0)
        caption = f"Mean energy of each source before (left) and after the steps: {first:.3f} to {last:.3f}."
    return _svg(lines, caption)


def _svg(lines: list[tuple[int, np.ndarray]], caption: str) -> str:
    """Polylines (n, 2) with the colour of their source, scaled to the box; larger values are higher."""
    points = np.concatenate([line for _, line in lines])
    points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    low, size = points.min(0), np.maximum(np.ptp(points, axis=0), 1e-12)
    box = np.array([WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE])
    drawn = []
    for source, line in lines:
        own = np.pad(line, ((0, 0), (0, 2 - line.shape[1])))
        x, y = (EDGE + (own - low) / size * box).T
        path = " ".join(f"{a:.1f},{HEIGHT - b:.1f}" for a, b in zip(x, y))
        color = COLORS[source % len(COLORS)]
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
            f'<circle cx="{x[0]:.1f}" cy="{HEIGHT - y[0]:.1f}" r="3" fill="none" stroke="{color}"/>'
            f'<circle cx="{x[-1]:.1f}" cy="{HEIGHT - y[-1]:.1f}" r="3" fill="{color}"/>'
        )
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(caption)}">'
    return f"<figure>{head}{''.join(drawn)}</svg><figcaption>{escape(caption)}</figcaption></figure>"
