"""Samples that adaptation saved and samples that it lost, with something to look at.

Pictures and texts belong to their owners: they stay in the cell's file on this machine, for the report, and
are never part of a results file.
"""

import base64
import io
from typing import Any

import numpy as np

from sourceward.data import DomainDataset

COUNT, SIDE, LETTERS = 4, 96, 280


def saved_and_lost(
    before: np.ndarray, after: np.ndarray, label: np.ndarray, codes: np.ndarray, dataset: DomainDataset
) -> list[dict[str, Any]]:
    """The largest rises in the probability of the true class among the saved, and falls among the lost.

    Args:
        before, after: probabilities, (n, known classes).
        label: (n,) codes of the dataset.
        codes: code of each known class.
        dataset: the same n samples.
    """
    said = [codes[p.argmax(1)] for p in (before, after)]
    right = [s == label for s in said]
    place = np.full(len(dataset.classes), -1)
    place[codes] = np.arange(len(codes))
    own = place[label]
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
                    "before": dataset.classes[said[0][row]],
                    "after": dataset.classes[said[1][row]],
                    "p_before": round(float(p_true[0][row]), 4),
                    "p_after": round(float(p_true[1][row]), 4),
                    **show(dataset, row),
                }
            )
    return entries


def show(dataset: DomainDataset, row: int) -> dict[str, str]:
    """A small picture as a data URI, or the text; nothing for features."""
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
    return {"picture": f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"}
