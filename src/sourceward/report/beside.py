"""What stands beside a bench's own numbers: published ones, how far ours are from them, and what it cost."""

from collections.abc import Iterator
from statistics import mean
from typing import Any

from sourceward.bench.costs import PREDICT, training_peak
from sourceward.bench.quoted import OFFICE_HOME, PACS, PHEME, Quoted, quoted
from sourceward.report.words import target_of

DATA = {"pacs": PACS, "office_home": OFFICE_HOME, "pheme": PHEME}
METHODS = ("ERM", "Tent", "T3A", "the paper, no adaptation", "the paper, 20 steps")
OWN = {"the paper, no adaptation": "none", "the paper, 20 steps": "ebtsa:num_steps=20"}
"""Our rows that a published one is compared with."""
CORRUPTED = "gaussian_noise"


def published(results: dict[str, Any]) -> list[Quoted]:
    """Rows of the paper's tables for the same data; of the same backbone, where the paper has it. Beside any
    corrupted data stand those of CIFAR-10-C, which say so."""
    targets = {target_of(place) for row in results["table"] for place in row["targets"]}
    data = next((name for name, domains in DATA.items() if targets and targets <= set(domains)), None)
    if CORRUPTED in targets:
        return quoted("corruptions", dataset="cifar10_c")
    if data is None:
        return []
    rows = [row for row in quoted("comparison", dataset=data) if row.method in METHODS]
    same = [row for row in rows if row.backbone == backbone_of(results)]
    return same or rows


def backbone_of(results: dict[str, Any]) -> str:
    """As `quoted` names it; what it is not, as it was given."""
    given = str(results["settings"].get("backbone") or " ".join(results["classes"]))
    return next((name for name in ("resnet18", "resnet50") if name in given), given)


def shortfalls(results: dict[str, Any]) -> Iterator[str]:
    """How far our rows are from the published ones of the same data and targets; another backbone is
    named."""
    rows = {row["adapter"]: row for row in results["table"]}
    for row in published(results):
        ours = rows.get(OWN.get(row.method, ""))
        if ours is None or row.measure != "accuracy %":
            continue
        theirs = row.mean_over({*map(target_of, ours["targets"])})
        if theirs is None:  # a mean over other targets than ours
            continue
        away = 100 * ours["mean"] - theirs
        says = "above" if away >= 0 else "BELOW"
        where = "" if row.backbone == backbone_of(results) else f" with {row.backbone}"
        over = "" if theirs == row.mean else " on these targets"
        yield f"{ours['label']}: {abs(away):.1f} points {says} {row.method}{where} ({theirs:.2f}{over})."


def source_weights(results: dict[str, Any]) -> str:
    """Whether confidence and energy tell right answers from wrong ones; the mean over models."""
    said = []
    for how, key, energy in (
        ("without adaptation", "none", "energy before"),
        ("after 20 steps", "ebtsa:num_steps=20", "energy after"),
    ):
        found = [cell["adapters"][key] for cell in results["cells"] if key in cell.get("adapters", {})]
        signals = [
            (
                name.split()[0],
                [n["source_weights"][name]["auroc"] for n in found if name in n.get("source_weights", {})],
            )
            for name in ("confidence", energy)
        ]
        told = [f"{name} {mean(scores):.2f}" for name, scores in signals if scores and None not in scores]
        if told:
            error = mean(n["calibration_error"] for n in found)
            said.append(f"{how} {' and '.join(told)}, calibration error {100 * error:.1f} points")
    return f"Right answers told from wrong ones (AUROC): {'; '.join(said)}." if said else ""


def cost(results: dict[str, Any]) -> str:
    """Seconds, speed and memory of training and prediction, on the mean over models."""
    cells = results["cells"]
    parts = []
    seconds = [cell["fit_seconds"] for cell in cells if cell.get("fit_seconds")]
    if seconds:
        parts.append(f"a model takes {mean(seconds):.0f} s")
    for stage, what in (("finetune", "its backbone trains"), ("training", "it trains")):
        costs = [(cell.get("cost") or {}).get(stage) or {} for cell in cells]
        speeds: list[float] = [c.get("images_per_second") or c.get("per_second") or 0 for c in costs]
        if speeds and all(speeds):
            parts.append(f"{what} on {mean(speeds):,.0f} samples/s")
    memory = [peak for cell in cells if (peak := training_peak(cell))]
    if memory:
        parts.append(f"peak memory {max(memory):,.0f} MB")
    answered = [part for cell in cells if (part := (cell.get("cost") or {}).get(PREDICT))]
    rows = [("without", "none"), *([] if answered else [("with 20 steps", "ebtsa:num_steps=20")])]
    told = [
        f"{1000 / ms:,.0f} samples/s {how}"
        for how, key in rows
        if (ms := _ms(cells, key)) and results["settings"].get("backbone")
    ]
    if answered:
        speed = mean(part["samples_per_second"] for part in answered)
        peak = max(part["peak_memory_mb"] for part in answered)
        steps = answered[0]["num_steps"]
        told.append(f"{speed:,.0f} samples/s with {steps} steps, peak memory {peak:,.0f} MB")
    if told:
        parts.append(f"prediction {', '.join(told)}")
    machine = results["versions"]["machine"]
    return f"Cost on {machine}: {'; '.join(parts)}." if parts else ""


def _ms(cells: list[dict[str, Any]], key: str) -> float | None:
    """Milliseconds a sample, backbone included."""
    found = [c["adapters"][key].get("ms_per_sample") for c in cells if key in c.get("adapters", {})]
    return mean(found) if found and all(found) else None


def absent(results: dict[str, Any]) -> list[str]:
    """Contestants that have no meaning here, each with the reason."""
    reasons = {c["adapter"]: c["reason"] for c in results.get("failed", ()) if c.get("unsuitable")}
    return [f"{adapter} does not apply: {reason}" for adapter, reason in reasons.items()]
