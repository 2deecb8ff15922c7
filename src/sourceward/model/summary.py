"""What a model prints: a few lines, and the same as HTML in a notebook."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from sourceward._util.tables import not_covered

if TYPE_CHECKING:
    from sourceward.model.model import Model

MOST_NAMES = 8
NOT_ESTIMATED = "not estimated"


def summary(model: "Model") -> str:
    """What the model reads, expected accuracy and gain, classes and sources, what adaptation does."""
    what = "features" if model.backbone is None else f"{model.kind} through {model.backbone.spec}"
    gain = model.adapter.expected_gain_
    more = "" if gain is None else not_covered(gain.tta, model.tta)
    return "\n".join(
        (
            f"Model of {what}",
            f"{len(model.classes)} classes: {_joined(model.classes)}",
            f"{len(model.sources)} sources: {_joined(model.sources)}",
            f"test-time augmentation: {model.tta or 'none'}; Langevin steps: {model.settings.num_steps}",
            f"expected accuracy on an unseen domain: {NOT_ESTIMATED if gain is None else gain.accuracy_text}",
            f"expected gain: {NOT_ESTIMATED if gain is None else gain}{f'. {more}' if more else ''}",
        )
    )


def summary_html(model: "Model") -> str:
    """The same for a notebook, with a row for each held-out source."""
    title, *lines = summary(model).split("\n")
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    found = f"<p><b>{escape(title)}</b></p><ul>{items}</ul>"
    gain = model.adapter.expected_gain_
    if gain is None or gain.accuracy is None:
        return found
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{100 * accuracy:.1f}</td>"
        f"<td>{100 * gain.per_source[name] if gain.adapts else 0:+.1f}</td></tr>"
        for name, accuracy in gain.accuracy_per_source.items()
    )
    head = "<tr><th>held-out source</th><th>accuracy, %</th><th>gain, points</th></tr>"
    return f"{found}<table>{head}{rows}</table>"


def _joined(names: Sequence[str]) -> str:
    left = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {left} more" if left > 0 else "")
