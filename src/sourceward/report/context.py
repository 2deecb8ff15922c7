"""Context of a bench's numbers: published ones, uncertainty signals, cost, methods that do not apply."""

from collections.abc import Iterator
from statistics import mean
from typing import Any

TWENTY = "ebtsa:num_steps=20"
OWN = {"the paper, no adaptation": "none", "the paper, 20 steps": TWENTY}
"""Our rows that a published one is compared with."""


def shortfalls(results: dict[str, Any]) -> Iterator[str]:
    """Yield the distance of our rows to the published ones of the same data and targets."""
    rows = {row["method"]: row for row in results["table"]}
    targets = {where for row in rows.values() for where in row["targets"]}
    for row in results.get("published", ()):
        ours, theirs = rows.get(OWN.get(row["method"], "")), row["mean_here"]
        if ours is None or theirs is None or row["measure"] != "accuracy %" or {*ours["targets"]} != targets:
            continue  # nothing to compare, or not over the same targets
        away = 100 * ours["mean"] - theirs
        says = "above" if away >= 0 else "BELOW"
        where = "" if row["same_backbone"] else f" with {row['backbone']}"
        over = "" if theirs == row["mean"] else " on these targets"
        yield f"{ours['label']}: {abs(away):.1f} points {says} {row['method']}{where} ({theirs:.2f}{over})."


def uncertainty(results: dict[str, Any]) -> str:
    """Return how well confidence and energy separate right from wrong predictions; the mean over models."""
    parts = []
    for how, key, energy in (
        ("without adaptation", "none", "energy before"),
        ("after 20 steps", TWENTY, "energy after"),
    ):
        found = [run["methods"][key] for run in results["runs"] if key in run["methods"]]
        signals = {
            name: [n["uncertainty"][name]["auroc"] for n in found if name in n.get("uncertainty", {})]
            for name in ("confidence", energy)
        }
        texts = [
            f"{name.split()[0]} {mean(scores):.2f}"
            for name, scores in signals.items()
            if scores and None not in scores
        ]
        if texts:
            error = mean(n["calibration_error"] for n in found)
            parts.append(f"{how} {' and '.join(texts)}, calibration error {100 * error:.1f} points")
    return f"Right against wrong predictions (AUROC): {'; '.join(parts)}." if parts else ""


def training_peak(run: dict[str, Any]) -> float | None:
    """Return the peak memory in MB over all stages of a training.

    >>> training_peak({"cost": {"finetune": {"peak_memory_mb": 900}, "heads": {"peak_memory_mb": 400}}})
    900
    """
    stages = [part for name, part in (run.get("cost") or {}).items() if name != "predict"]
    return max((part["peak_memory_mb"] for part in stages if part.get("peak_memory_mb")), default=None)


def cost(results: dict[str, Any]) -> str:
    """Return seconds, speed and memory of training and prediction; the mean over models."""
    runs = results["runs"]
    parts = []
    seconds = [run["fit_seconds"] for run in runs if run.get("fit_seconds")]
    if seconds:
        parts.append(f"a model takes {mean(seconds):.0f} s")
    for stage, what in (("finetune", "its backbone trains"), ("training", "it trains")):
        costs = [(run.get("cost") or {}).get(stage) or {} for run in runs]
        speeds: list[float] = [c.get("images_per_second") or c.get("per_second") or 0 for c in costs]
        if speeds and all(speeds):
            parts.append(f"{what} on {mean(speeds):,.0f} samples/s")
    memory = [peak for run in runs if (peak := training_peak(run))]
    if memory:
        parts.append(f"peak memory {max(memory):,.0f} MB")
    prediction = _prediction(results)
    if prediction:
        parts.append(f"prediction {', '.join(prediction)}")
    return f"Cost on {results['versions']['machine']}: {'; '.join(parts)}." if parts else ""


def _prediction(results: dict[str, Any]) -> list[str]:
    """Return the speed of prediction without and with adaptation, backbone included."""
    runs = results["runs"]
    measured = [part for run in runs if (part := (run.get("cost") or {}).get("predict"))]
    rows = [("without", "none"), *([] if measured else [("with 20 steps", TWENTY)])]
    texts = [
        f"{1000 / ms:,.0f} samples/s {how}"
        for how, key in rows
        if results["settings"].get("backbone") and (ms := _ms(runs, key))
    ]
    if measured:
        speed = mean(part["samples_per_second"] for part in measured)
        peak = max(part["peak_memory_mb"] for part in measured)
        steps = measured[0]["num_steps"]
        texts.append(f"{speed:,.0f} samples/s with {steps} steps, peak memory {peak:,.0f} MB")
    return texts


def _ms(runs: list[dict[str, Any]], key: str) -> float | None:
    """Return milliseconds per sample, backbone included."""
    found = [run["methods"][key].get("ms_per_sample") for run in runs if key in run["methods"]]
    return mean(found) if found and all(found) else None


def inapplicable(results: dict[str, Any]) -> list[str]:
    """Return the methods that do not apply to this data, each with the reason."""
    reasons = {run["method"]: run["reason"] for run in results.get("failed", ()) if run.get("unsuitable")}
    return [f"{method} does not apply: {reason}" for method, reason in reasons.items()]
