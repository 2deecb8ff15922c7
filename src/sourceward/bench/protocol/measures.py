"""What is stored of one set of predictions: accuracy, calibration, energies, uncertainty."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sourceward.adaptation import AdaptationResult
from sourceward.functional import expected_calibration_error, negative_log_likelihood
from sourceward.functional.calibration import calibration_gap
from sourceward.functional.metrics import MANY_CLASSES, confusion_counts
from sourceward.model.examples import class_positions

COVERAGES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


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
    counts = confusion_counts(predicted, label, len(classes))
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
    signals = {"confidence": adapted.probabilities.max(1), "trust": adapted.trust}
    numbers["trust_calibration_error"] = calibration_gap(adapted.trust, right)
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
