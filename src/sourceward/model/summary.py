"""What a model prints: a few lines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sourceward.model.model import Model

MOST_NAMES = 8


def summary(model: "Model") -> str:
    """What the model reads, its classes and sources, what adaptation does and the expected gain."""
    what = "features" if model.backbone is None else f"{model.kind} through {model.backbone.spec}"
    gain = model.adapter.expected_gain_
    return "\n".join(
        (
            f"Model of {what}",
            f"{len(model.classes)} classes: {_joined(model.classes)}",
            f"{len(model.sources)} sources: {_joined(model.sources)}",
            f"test-time augmentation: {model.tta or 'none'}; Langevin steps: {model.settings.num_steps}",
            f"expected gain: {'not estimated' if gain is None else gain}",
        )
    )


def _joined(names: Sequence[str]) -> str:
    left = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {left} more" if left > 0 else "")
