"""What is stored of one set of predictions: accuracy, calibration, energies, uncertainty, example samples.

Images and texts belong to their owners: they stay in the run's file on this machine, for the report, and are
never part of a results file.
"""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sourceward.adaptation import AdaptationResult
from sourceward.data import DomainDataset
from sourceward.functional import expected_calibration_error, negative_log_likelihood

COVERAGES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
MANY_CLASSES = 100
"""Above this number of classes no confusion table is stored."""

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


def measure(
    probability: np.ndarray, label: np.ndarray, codes: np.ndarray, classes: Sequence[str]
) -> dict[str, Any]:
    """Return accuracy, overall and for each class, confusion and calibration.

    Args:
        probability: (n, known classes).
        label: (n,) codes into `classes`.
        codes: code of each known class.
        classes: names.
    """
    predicted = codes[probability.argmax(1)]
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (label, predicted), 1)
    total = counts.sum(1)
    own = torch.from_numpy(class_positions(codes, len(classes))[label])
    known, p = own >= 0, torch.from_numpy(probability).double()
    return {
        "accuracy": float((predicted == label).mean()),
        "per_class": {
            name: {"accuracy": float(counts[i, i] / total[i]), "samples": int(total[i])}
            for i, name in enumerate(classes)
            if total[i]
        },
        "confusion": counts.tolist() if len(classes) <= MANY_CLASSES else None,
        "calibration_error": float(expected_calibration_error(p, own)),
        "log_loss": float(negative_log_likelihood(p[known], own[known])) if known.any() else None,
    }


def measure_adaptation(
    adapted: AdaptationResult, right: np.ndarray, sources: Sequence[Any]
) -> dict[str, Any]:
    """Return what only an `AdaptationResult` tells: energies, status, and uncertainty signals."""
    before, after = adapted.energy_before.mean(1), adapted.energy_after.mean(1)
    numbers: dict[str, Any] = {"status": dict(Counter(adapted.status.tolist()))}
    signals = {"confidence": adapted.probabilities.max(1)}
    if np.isfinite(before).all() and np.isfinite(after).all() and np.ptp(before) > 0:
        both = (adapted.energy_before, adapted.energy_after)
        numbers |= {
            "energy_before": float(before.mean()),
            "energy_after": float(after.mean()),
            "lowered": float((adapted.energy_after < adapted.energy_before).all(1).mean()),
            "energies": {str(s): [float(e[:, i].mean()) for e in both] for i, s in enumerate(sources)},
        }
        signals |= {"energy before": -before, "energy after": -after}
    numbers["uncertainty"] = {name: separation(value, right) for name, value in signals.items()}
    return numbers


def separation(signal: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Return how well a signal, high for certain predictions, separates right from wrong ones.

    Returns:
        auroc: probability that a right prediction has the higher signal; None where all or none are right.
        selective: accuracy on the share of the samples with the highest signal.
    """
    from sklearn.metrics import roc_auc_score

    order = np.argsort(-signal, kind="stable")
    selective = {
        f"{share:g}": float(right[order[: max(1, round(share * len(right)))]].mean()) for share in COVERAGES
    }
    mixed = 0 < right.sum() < len(right)
    return {"auroc": float(roc_auc_score(right, signal)) if mixed else None, "selective": selective}


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
