"""What a results file tells of the cost of a model: that of each stage of its training, and of prediction."""

from typing import Any

PREDICT = "predict"
"""The part of a cell's `cost` that is no training."""

STEPS = 20
"""Of the prediction that is measured: the longest walk that a bench asks for by itself."""


def training_peak(cell: dict[str, Any]) -> float | None:
    """Peak memory in MB over all stages of a training: the meter starts anew with every stage.

    >>> stages = {"finetune": {"peak_memory_mb": 900}, "heads": {"peak_memory_mb": 400}}
    >>> training_peak({"fit_peak_memory_mb": 400, "cost": stages})
    900
    """
    stages = {name: part for name, part in (cell.get("cost") or {}).items() if name != PREDICT}
    peaks = [part["peak_memory_mb"] for part in stages.values() if part.get("peak_memory_mb")]
    return max(peaks) if peaks else cell.get("fit_peak_memory_mb")
