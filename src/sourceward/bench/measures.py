"""The numbers of one answer: how often it is right, where, and whether it knows when it is not."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sourceward.adaptation import AdaptationResult
from sourceward.functional import expected_calibration_error, negative_log_likelihood

COVERAGES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
MANY = 100
"""Classes above which a confusion table is no table any more."""


def measure(
    probability: np.ndarray, label: np.ndarray, codes: np.ndarray, classes: Sequence[str]
) -> dict[str, Any]:
    """Accuracy, in all and for each class, confusion and calibration.

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
    place = np.full(len(classes), -1)
    place[codes] = np.arange(len(codes))
    own = torch.from_numpy(place[label])
    known, p = own >= 0, torch.from_numpy(probability).double()
    return {
        "accuracy": float((predicted == label).mean()),
        "per_class": {
            name: {"accuracy": float(counts[i, i] / total[i]), "samples": int(total[i])}
            for i, name in enumerate(classes)
            if total[i]
        },
        "confusion": counts.tolist() if len(classes) <= MANY else None,
        "calibration_error": float(expected_calibration_error(p, own)),
        "log_loss": float(negative_log_likelihood(p[known], own[known])) if known.any() else None,
    }


def measure_walk(adapted: AdaptationResult, right: np.ndarray, sources: Sequence[Any]) -> dict[str, Any]:
    """What only an `AdaptationResult` knows: energies, status, each source's own part, and source_weights signals."""
    before, after = adapted.energy_before.mean(1), adapted.energy_after.mean(1)
    numbers: dict[str, Any] = {"status": dict(Counter(adapted.status.tolist()))}
    signals = {"confidence": adapted.probabilities.max(1)}
    if np.isfinite(before).all() and np.isfinite(after).all() and np.ptp(before) > 0:
        numbers |= {
            "energy_before": float(before.mean()),
            "energy_after": float(after.mean()),
            "lowered": float((adapted.energy_after < adapted.energy_before).all(1).mean()),
            "energies": {
                str(name): [
                    float(adapted.energy_before[:, i].mean()),
                    float(adapted.energy_after[:, i].mean()),
                ]
                for i, name in enumerate(sources)
            },
        }
        signals |= {"energy before": -before, "energy after": -after}
    numbers["source_weights"] = {name: source_weights(value, right) for name, value in signals.items()}
    return numbers


def source_weights(signal: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """How well a signal, high where the answer is to be trusted, tells right from wrong answers.

    Returns:
        auroc: chance that a right answer has the higher signal; None where all or none are right.
        selective: accuracy of the most trusted share of the samples.
    """
    from sklearn.metrics import roc_auc_score

    order = np.argsort(-signal, kind="stable")
    selective = {
        f"{share:g}": float(right[order[: max(1, round(share * len(right)))]].mean()) for share in COVERAGES
    }
    mixed = 0 < right.sum() < len(right)
    return {"auroc": float(roc_auc_score(right, signal)) if mixed else None, "selective": selective}
