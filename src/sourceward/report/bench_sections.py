"""The sections of a bench's page, each from its numbers alone; one that has nothing to show is None."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sourceward._util import tables
from sourceward._util.tables import GLUE, Table
from sourceward.report.figures import STYLES, to_svg
from sourceward.report.page import Figure, Section
from sourceward.report.subject import NONE, Subject, in_part

MANY_CLASSES = 24
mean_text, gain_text = partial(tables.mean_text, glue=GLUE), partial(tables.gain_text, glue=GLUE)


def methods(results: dict[str, Any]) -> Section:
    """Return the accuracy of every method and its difference to no adaptation."""
    rows, every = results["table"], tables.target_names(results["table"])
    some = [tables.some_targets(row, every) for row in rows]
    lines = [
        [row["label"], mean_text(row) + few, gain_text(row), tables.requirements(row), tables.ms_text(row)]
        for row, few in zip(rows, some)
    ]
    header = ["method", "accuracy, %", "difference (95 % interval)", "requires", "ms a sample"]
    part = in_part(results["runs"])
    ranked = [i for i, row in enumerate(rows) if not row["oracle"] and row["method"] not in part]
    ranked = [i for i in ranked if not some[i]]
    best = max(ranked, key=lambda i: rows[i]["mean"])
    text = (
        "All methods use the same models and the same features. Requirements at test time: weight updates, "
        "state kept from sample to sample, a batch of samples at once."
    )
    shown = {row["label"]: row for row in rows if row["method"] != NONE}
    chart = _gains(shown, "points above no adaptation", 0.27, "difference of each method to no adaptation")
    caption = "Difference to no adaptation with its 95 % interval; one that crosses the line is not clear."
    bold = "Bold: the best mean" + (" of those evaluated on all rows." if part else ".")
    table = Table(header, lines, f"{bold} {results['plus_minus']}", strong=[best])
    return Section("Does it help?", text, [table], [Figure([chart], caption)] if shown else [])


def _gains(rows: dict[str, dict[str, Any]], xlabel: str, height: float, name: str) -> str:
    panel = {"plot": "gains", "names": list(rows), "xlabel": xlabel}
    panel |= {key: [100 * row[key] for row in rows.values()] for key in ("gain", "gain_low", "gain_high")}
    return to_svg(panel, (5.0, 0.8 + height * len(rows)), name)


def targets(subject: Subject) -> Section:
    """Return gain, saved and lost samples on each target."""
    expected: dict[str, list[float]] = {}
    for run in subject.runs:
        value = subject.expected_gain(run)
        if value is not None:
            expected.setdefault(f"{run['data']}/{run['target']}", []).append(value)
    each, rows = subject.row["targets"], []
    for where, name in subject.names.items():
        numbers, before = each[where], subject.none["targets"][where]
        if subject.partial:  # no adaptation on the same samples
            before = {"mean": numbers["mean"] - numbers["gain"], "std": None}
        seeds = max(sum(f"{run['data']}/{run['target']}" == where for run in subject.runs), 1)
        counts = [f"{numbers[kind] / seeds:.0f}" for kind in ("saved", "lost")]
        row = [name, mean_text(before), mean_text(numbers), gain_text(numbers), *counts]
        if expected:
            row.append(f"{100 * np.mean(expected[where]):+.1f}" if where in expected else "-")
        rows.append(row)
    header = ["target", "without, %", "with, %", "difference (95 % interval)", "saved", "lost"]
    header += ["expected gain"] if expected else []
    chart = _gains(
        {n: each[w] for w, n in subject.names.items()}, "gain in points", 0.3, "gain on each target"
    )
    caption = "Blue: a clear gain. Orange: a clear loss. Grey: the interval contains 0."
    text = (
        f"{subject.row['label']}. Saved: wrong without, right with. Lost: right without, wrong with. Means "
        "over seeds."
    )
    if expected:
        text += " Expected gain: estimated by leave-one-domain-out validation on the sources."
    return Section("On which targets?", text, [Table(header, rows)], [Figure([chart], caption)])


def step_curves(results: dict[str, Any]) -> Section | None:
    """Return accuracy and energy against steps, where several numbers of steps were evaluated."""
    runs = results["runs"]
    methods = {key for run in runs for key in run["methods"]}
    keys = {int(n): key for key in methods if (n := key.removeprefix("ebtsa:num_steps=")).isdigit()}
    keys, steps = {0: NONE, **keys}, sorted({0, *keys})
    if len(steps) < 3:
        return None
    charts = []
    for key, label, scale in (("accuracy", "accuracy, %", 100), ("energy_after", "mean energy", 1)):
        lines: dict[str, list[float]] = {}
        for where, name in tables.short_names(f"{r['data']}/{r['target']}" for r in runs).items():
            own = [run["methods"] for run in runs if f"{run['data']}/{run['target']}" == where]
            own = [by for by in own if all(key in by.get(keys[k], ()) for k in steps)]
            if own:
                lines[name] = [scale * float(np.mean([by[keys[k]][key] for by in own])) for k in steps]
        if len(lines) > len(STYLES):
            lines = {"mean over targets": np.mean(list(lines.values()), axis=0).tolist()}
        if lines:
            panel = {"plot": "lines", "x": steps, "lines": lines, "xlabel": "steps", "ylabel": label}
            charts.append(to_svg(panel, (4.4, 3.2), f"{label} against steps"))
    caption = (
        "Accuracy and mean energy after each number of steps. The energy keeps falling; see how long "
        "accuracy rises with it."
    )
    return Section("How many steps?", figures=[Figure(charts, caption)]) if charts else None


def classes(subject: Subject) -> Section | None:
    """Return the accuracy of each class, with and without, over all targets and seeds."""
    if subject.partial:  # without and with are of different samples
        return None
    counts: dict[str, Any] = {}
    for run in subject.runs:
        after = subject.numbers(run)["per_class"]
        for name, own in subject.before(run)["per_class"].items():
            shares = np.array([1, own["accuracy"], after[name]["accuracy"]])
            counts[name] = counts.get(name, 0) + own["samples"] * shares
    if not counts:
        return None
    seeds = len({run["seed"] for run in subject.runs})
    shown = {name: (n / seeds, 100 * b / n, 100 * a / n) for name, (n, b, a) in counts.items()}
    return class_section(shown, "All targets and seeds together, the largest gain first.")


def class_section(shown: Mapping[str, tuple[float, float, float]], text: str) -> Section:
    """Return samples and accuracy in %, without and with, of each class; `text` where all are shown."""
    if all(before == after for _, before, after in shown.values()):
        ordered = sorted(shown, key=lambda name: shown[name][2])[:MANY_CLASSES]
        lines = [[name, f"{shown[name][0]:,.0f}", f"{shown[name][2]:.1f}"] for name in ordered]
        few = f", {MANY_CLASSES} of {len(shown)}" if len(ordered) < len(shown) else ""
        text = f"Adaptation changes the accuracy of no class. The least accurate first{few}."
        return Section("Which classes?", text, [Table(["class", "samples", "accuracy, %"], lines)])
    ordered = sorted(shown, key=lambda name: shown[name][2] - shown[name][1], reverse=True)
    if len(ordered) > MANY_CLASSES:
        half = MANY_CLASSES // 2
        text = f"The {half} classes that gain most and the {half} that gain least, of {len(ordered)}."
        ordered = ordered[:half] + ordered[-half:]
    rows = [
        [name, f"{n:,.0f}", f"{b:.1f}", f"{a:.1f}", f"{a - b:+.1f}"]
        for name, (n, b, a) in ((name, shown[name]) for name in ordered)
    ]
    before, after = ([shown[name][i] for name in ordered] for i in (1, 2))
    panel = {"plot": "pairs", "names": ordered, "before": before, "after": after, "xlabel": "accuracy, %"}
    chart = to_svg(panel, (5.0, 0.8 + 0.25 * len(ordered)), "accuracy of each class, without and with")
    caption = "Hollow: without. Filled: with. See whether a few classes lose where the others gain."
    table = Table(["class", "samples", "without, %", "with, %", "change"], rows)
    return Section("Which classes?", text, [table], [Figure([chart], caption)])


def confusion(subject: Subject) -> Section | None:
    """Return confusion tables without and with, over all targets and seeds, of data with the same classes."""
    names = {tuple(value) for value in subject.class_names.values()}
    if subject.partial or len(names) != 1:
        return None
    if any(subject.before(run)["confusion"] is None for run in subject.runs):
        return None
    labels = next(iter(names))
    before, after = (
        np.sum([np.array(source(run)["confusion"]) for run in subject.runs], axis=0)
        for source in (subject.before, subject.numbers)
    )
    return confusion_section({"without": before, "with": after}, labels)


def confusion_section(counts: Mapping[str, np.ndarray], labels: Sequence[str]) -> Section:
    """Return a confusion chart for each title; the largest changes, where there are two."""
    side = 3.4 if len(labels) <= 10 else 5.0
    charts = [
        to_svg(
            {"plot": "confusion", "counts": own, "classes": labels, "title": title},
            (side, side),
            f"confusion {title}",
        )
        for title, own in counts.items()
    ]
    first, last = next(iter(counts.values())), [*counts.values()][-1]
    caption = (
        "Rows: the true class. Columns: the prediction. Numbers: per cent of the row. Blue is right, orange "
        f"wrong; a stronger colour is a larger share. {_largest_changes(last - first, labels)}"
    )
    return Section("Which classes are confused?", figures=[Figure(charts, caption)])


def _largest_changes(change: np.ndarray, names: Sequence[str]) -> str:
    """Return the mistakes that adaptation corrects and makes most."""
    off = change * (1 - np.eye(len(names), dtype=int))
    fewer, more = np.unravel_index(off.argmin(), off.shape), np.unravel_index(off.argmax(), off.shape)
    found = []
    if off[fewer] < 0:
        found.append(f"Corrected most: {names[fewer[0]]} taken for {names[fewer[1]]} ({-off[fewer]} fewer).")
    if off[more] > 0:
        found.append(f"Made most: {names[more[0]]} taken for {names[more[1]]} ({off[more]} more).")
    return " ".join(found)


def uncertainty(subject: Subject) -> Section | None:
    """Return how well confidence and energy separate right from wrong predictions."""
    if subject.partial:
        return None
    rows, curves, curve = [], {}, {}
    for label, source, energy in (
        ("without", subject.before, "energy before"),
        ("with", subject.numbers, "energy after"),
    ):
        found = [source(run)["uncertainty"] for run in subject.runs if "uncertainty" in source(run)]
        for signal in ("confidence", energy):
            own = [signals[signal] for signals in found if signal in signals]
            if own:
                scores = [s["auroc"] for s in own if s["auroc"] is not None]
                curve = {
                    s: 100 * float(np.mean([o["selective"][s] for o in own])) for s in own[0]["selective"]
                }
                name = f"{signal.split()[0]}, {label}"
                auroc = f"{np.mean(scores):.3f}" if scores else "-"
                rows.append([name, auroc, *(f"{value:.1f}" for value in curve.values())])
                curves[name] = list(curve.values())
    if not rows:
        return None
    shares = [100 * float(share) for share in curve]
    error = [
        100 * np.mean([source(run)["calibration_error"] for run in subject.runs])
        for source in (subject.before, subject.numbers)
    ]
    text = (
        "AUROC: the probability that a right prediction has a higher signal than a wrong one; 0.5 is chance. "
        "Accuracy should rise when only the samples with the highest signal are classified. Calibration "
        f"error (gap between confidence and accuracy): {error[0]:.1f} points without, {error[1]:.1f} with."
    )
    header = ["signal", "AUROC", *(f"best {share:.0f}{GLUE}%" for share in shares)]
    axes = {"xlabel": "samples classified, %", "ylabel": "accuracy, %"}
    chart = to_svg(
        {"plot": "lines", "x": shares, "lines": curves, **axes},
        (5.6, 3.4),
        "accuracy against the share of samples that are classified",
    )
    caption = "Accuracy on the samples with the highest signal. A better signal rises more to the left."
    table = Table(header, rows, "Mean over targets and seeds; accuracy in %.")
    return Section("Is the uncertainty reliable?", text, [table], [Figure([chart], caption)])
