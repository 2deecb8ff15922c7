"""Example samples: predictions that adaptation corrected (saved) and those that it made wrong (lost).

Images and texts belong to their owners: they stay in the run's file on this machine, for the report, and are
never part of a results file.
"""

import base64
import io
from typing import Any

import numpy as np

from sourceward.bench.protocol.measures import class_positions
from sourceward.data import DomainDataset

COUNT, SIDE, LETTERS = 4, 96, 280


def saved_and_lost(
    before: np.ndarray, after: np.ndarray, label: np.ndarray, codes: np.ndarray, dataset: DomainDataset
) -> list[dict[str, Any]]:
    """Return the largest rises of the true class's probability among the saved, and falls among the lost.

    Args:
        before, after: probabilities, (n, known classes).
        label: (n,) codes of the dataset.
        codes: code of each known class.
        dataset: the same n samples.
    """
    predicted = [codes[p.argmax(1)] for p in (before, after)]
    right = [p == label for p in predicted]
    own = class_positions(codes, len(dataset.classes))[label]
    p_true = [np.where(own >= 0, p[np.arange(len(own)), own], 0) for p in (before, after)]
    entries = []
    for kind, rows in (("saved", right[1] & ~right[0]), ("lost", right[0] & ~right[1])):
        picked = np.flatnonzero(rows)
        rise = np.abs(p_true[1] - p_true[0])[picked]
        for row in picked[np.argsort(-rise, kind="stable")[:COUNT]].tolist():
            entries.append(
                {
                    "kind": kind,
                    "id": dataset.ids[row],
                    "true": dataset.classes[label[row]],
                    "before": dataset.classes[predicted[0][row]],
                    "after": dataset.classes[predicted[1][row]],
                    "p_before": round(float(p_true[0][row]), 4),
                    "p_after": round(float(p_true[1][row]), 4),
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
        image = Image.open(io.BytesIO(item.read())).convert("RGB")
    image.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    kind = "png" if max(image.size) < 64 else "jpeg"
    image.save(stream, kind, **({} if kind == "png" else {"quality": 80}))
    return {"image": f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"}
