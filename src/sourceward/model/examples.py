"""Example samples of an evaluation: those that adaptation saved and lost, and the most confident mistakes.

Images and texts belong to their owners: they stay in the run's folder on this machine, for the report, and
are never part of a results file.
"""

import base64
import io
from typing import Any

import numpy as np

from sourceward.data import DomainDataset
from sourceward.data.decode import open_image

COUNT, SIDE, LETTERS = 4, 96, 280
"""Example samples of each kind and target, their longest side in pixels, their longest text."""


def class_positions(codes: np.ndarray, count: int) -> np.ndarray:
    """Return the position of each of `count` class codes in `codes`; -1 where it is missing.

    >>> class_positions(np.array([2, 0]), 3)
    array([ 1, -1,  0])
    """
    positions = np.full(count, -1)
    positions[codes] = np.arange(len(codes))
    return positions


def saved_and_lost(
    before: np.ndarray,
    after: np.ndarray,
    label: np.ndarray,
    codes: np.ndarray,
    dataset: DomainDataset,
    mistakes: bool = False,
) -> list[dict[str, Any]]:
    """Return the largest rises of the true class's probability among the saved, and falls among the lost.

    Args:
        before, after: probabilities, (n, known classes).
        label: (n,) codes of the dataset.
        codes: code of each known class.
        dataset: the same n samples.
        mistakes: also the wrong predictions after adaptation that have the highest probability.
    """
    predicted = [codes[p.argmax(1)] for p in (before, after)]
    right = [p == label for p in predicted]
    own = class_positions(codes, len(dataset.classes))[label]
    p_true = [np.where(own >= 0, p[np.arange(len(own)), own], 0) for p in (before, after)]
    change = np.abs(p_true[1] - p_true[0])
    kinds = {"saved": (right[1] & ~right[0], change), "lost": (right[0] & ~right[1], change)}
    if mistakes:
        kinds["wrong"] = (~right[1], after.max(1))
    entries = []
    for kind, (rows, size) in kinds.items():
        picked = np.flatnonzero(rows)
        for row in picked[np.argsort(-size[picked], kind="stable")[:COUNT]].tolist():
            entries.append(
                {
                    "kind": kind,
                    "id": dataset.ids[row],
                    "true": dataset.classes[label[row]],
                    "before": dataset.classes[predicted[0][row]],
                    "after": dataset.classes[predicted[1][row]],
                    "p_before": round(float(p_true[0][row]), 4),
                    "p_after": round(float(p_true[1][row]), 4),
                    "p_predicted": round(float(after[row].max()), 4),
                    **show(dataset, row),
                }
            )
    return entries


def show(dataset: DomainDataset, row: int) -> dict[str, str]:
    """Return a thumbnail as a data URI, or the text; nothing for features."""
    if dataset.kind == "features":
        return {}
    item = dataset.items[row]
    if dataset.kind == "text":
        text = " ".join(str(item).split())
        return {"text": text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"}
    from PIL import Image

    if isinstance(item, np.ndarray):
        image = Image.fromarray(item[0] if len(item) == 1 else item.transpose(1, 2, 0))
    else:
        image = open_image(item.read()).convert("RGB")
    image.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    kind = "png" if max(image.size) < 64 else "jpeg"
    image.save(stream, kind, **({} if kind == "png" else {"quality": 80}))
    return {"image": f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"}
