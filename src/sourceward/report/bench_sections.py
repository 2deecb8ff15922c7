"""The sections of a bench's page, each from its numbers alone; one that has nothing to show is None."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sourceward.report import figures, words
from sourceward.report.page import Card, Figure, Section, Table
from sourceward.report.subject import NONE, Subject, in_part

MANY_CLASSES = 24
CARDS = 8
spread, gain = partial(words.spread, glue=words.GLUE), partial(words.gain, glue=words.GLUE)


def contestants(results: dict[str, Any]) -> Section:
    """Everyone's accuracy and difference to no adaptation."""
    rows = results["table"]
    cells = [[row["label"], spread(row), gain(row), words.asks_for(row), words.cost(row)] for row in rows]
    header = ["contestant", "accuracy, %", "difference (95 % interval)", "asks for", "ms a sample"]
    part = in_part(results["cells"])
    ranked = [i for i, row in enumerate(rows) if not row["oracle"] and row["adapter"] not in part]
    best = max(ranked, key=lambda i: rows[i]["mean"])
    text = (
        "Everyone met the same models and the same features. What a method asks for: weights that change at "
        "test time, state that it keeps from sample to sample, a batch of samples at once."
    )
    shown = [row for row in rows if row["adapter"] != NONE]
    low, mid, high = (
        np.array([100 * row[key] for row in shown]) for key in ("gain_low", "gain", "gain_high")
    )
    draw = partial(
        figures.draw_gains,
        names=[row["label"] for row in shown],
        gains=mid,
        low=low,
        high=high,
        xlabel="points above no adaptation",
    )
    chart = figures.to_svg(
        draw, (5.0, 0.8 + 0.27 * len(shown)), "difference of each contestant to no adaptation"
    )
    caption = (
        "Difference to no adaptation with its 95 % interval. One that crosses the line is no clear "
        "difference."
    )
    bold = "Bold: the best mean" + (" of those that answered all rows." if part else ".")
    table = Table(header, cells, f"{bold} {results['plus_minus']}", strong=[best])
    return Section("Does it help?", text, [table], [Figure([chart], caption)] if shown else [])


def targets(subject: Subject) -> Section:
    """Gain, saved and lost on each target."""
    rows: list[list[str]] = []
    promises: dict[str, list[float]] = {}
    for cell in subject.cells:
        value = subject.promised(cell)
        if value is not None:
            promises.setdefault(f"{cell['data']}/{cell['target']}", []).append(value)
    each = subject.row["targets"]
    names = words.short_names(each)
    for place, numbers in each.items():
        before = subject.none["targets"][place]
        if subject.partial:  # no adaptation on the same samples
            before = {"mean": numbers["mean"] - numbers["gain"], "std": None}
        seeds = max(sum(f"{c['data']}/{c['target']}" == place for c in subject.cells), 1)
        saved, lost = numbers["saved"] / seeds, numbers["lost"] / seeds
        row = [names[place], spread(before), spread(numbers), gain(numbers), f"{saved:.0f}", f"{lost:.0f}"]
        if promises:
            row.append(f"{100 * np.mean(promises[place]):+.1f}" if place in promises else "-")
        rows.append(row)
    header = ["target", "without, %", "with, %", "difference (95 % interval)", "saved", "lost"]
    header += ["promised"] if promises else []
    low, mid, high = (
        np.array([100 * t[k] for t in each.values()]) for k in ("gain_low", "gain", "gain_high")
    )
    draw = partial(
        figures.draw_gains,
        names=list(names.values()),
        gains=mid,
        low=low,
        high=high,
        xlabel="gain in points",
    )
    chart = figures.to_svg(draw, (5.0, 0.8 + 0.3 * len(each)), "gain on each target")
    caption = "Blue: a clear gain. Orange: a clear loss. Grey: the interval holds 0."
    text = (
        f"{subject.row['label']}. Saved: wrong without, right with; lost: the other way round; mean over "
        "seeds."
    )
    if promises:
        text += " Promised: the gain expected before the target was seen."
    return Section("On which targets?", text, [Table(header, rows)], [Figure([chart], caption)])


def step_curves(results: dict[str, Any]) -> Section | None:
    """Accuracy and energy against steps, where several numbers of steps were asked for."""
    cells = results["cells"]
    steps = sorted({int(k) for cell in cells for k in cell["by_steps"] if k.isdigit()})
    if len(steps) < 3:
        return None
    charts = []
    for key, label, scale in (("accuracy", "accuracy, %", 100), ("energy_after", "mean energy", 1)):
        lines: dict[str, list[float]] = {}
        for place, name in words.short_names(f"{c['data']}/{c['target']}" for c in cells).items():
            own = [c["by_steps"] for c in cells if f"{c['data']}/{c['target']}" == place]
            own = [by for by in own if all(str(k) in by and key in by[str(k)] for k in steps)]
            if own:
                lines[name] = [scale * float(np.mean([by[str(k)][key] for by in own])) for k in steps]
        if len(lines) > len(figures.STYLES):
            lines = {"mean over targets": np.mean(list(lines.values()), axis=0).tolist()}
        if lines:
            draw = partial(figures.draw_lines, x=steps, lines=lines, xlabel="steps", ylabel=label)
            charts.append(figures.to_svg(draw, (4.4, 3.2), f"{label} against steps"))
    caption = (
        "Accuracy and mean energy after each number of steps. The energy keeps falling; see how long "
        "accuracy follows."
    )
    return Section("How many steps?", figures=[Figure(charts, caption)]) if charts else None


def classes(subject: Subject) -> Section | None:
    """Accuracy of each class, with and without, over all targets and seeds."""
    if subject.partial:  # without and with are of different samples
        return None
    counts: dict[str, np.ndarray] = {}
    for cell in subject.cells:
        for name, own in subject.before(cell)["per_class"].items():
            after = subject.numbers(cell)["per_class"][name]
            sums = np.array(
                [own["samples"], own["samples"] * own["accuracy"], own["samples"] * after["accuracy"]]
            )
            counts[name] = counts.get(name, 0) + sums
    if not counts:
        return None
    seeds = len({cell["seed"] for cell in subject.cells})
    shares = {name: (n / seeds, 100 * b / n, 100 * a / n) for name, (n, b, a) in counts.items()}
    ordered = sorted(shares, key=lambda name: shares[name][2] - shares[name][1], reverse=True)
    if len(ordered) > MANY_CLASSES:
        half = MANY_CLASSES // 2
        text = f"The {half} classes that gain most and the {half} that gain least, of {len(ordered)}."
        ordered = ordered[:half] + ordered[-half:]
    else:
        text = "All targets and seeds together, the largest gain first."
    rows = [
        [name, f"{n:,.0f}", f"{b:.1f}", f"{a:.1f}", f"{a - b:+.1f}"]
        for name in ordered
        for n, b, a in [shares[name]]
    ]
    before, after = (np.array([shares[name][i] for name in ordered]) for i in (1, 2))
    draw = partial(figures.draw_pairs, names=ordered, before=before, after=after, xlabel="accuracy, %")
    chart = figures.to_svg(draw, (5.0, 0.8 + 0.25 * len(ordered)), "accuracy of each class, without and with")
    caption = "Hollow: without. Filled: with. See whether a gain is paid for by a few classes."
    table = Table(["class", "samples", "without, %", "with, %", "change"], rows)
    return Section("Which classes?", text, [table], [Figure([chart], caption)])


def confusion(subject: Subject) -> Section | None:
    """What is taken for what, without and with, over all targets and seeds; of data with the same classes."""
    names = {tuple(value) for value in subject.class_names.values()}
    if subject.partial or len(names) != 1:
        return None
    if any(subject.before(cell)["confusion"] is None for cell in subject.cells):
        return None
    classes = next(iter(names))
    before, after = (
        np.sum([np.array(source(cell)["confusion"]) for cell in subject.cells], axis=0)
        for source in (subject.before, subject.numbers)
    )
    side = 3.4 if len(classes) <= 10 else 5.0
    charts = [
        figures.to_svg(
            partial(figures.draw_confusion, counts=counts, classes=classes, title=title),
            (side, side),
            f"confusion {title}",
        )
        for title, counts in (("without", before), ("with", after))
    ]
    worst = _confusions(after - before, classes)
    caption = (
        "Rows: the true class. Columns: the answer. Numbers: per cent of the row. Blue is right, orange "
        "wrong; a "
        f"stronger colour is a larger share. {worst}"
    )
    return Section("What is taken for what?", figures=[Figure(charts, caption)])


def _confusions(change: np.ndarray, names: Sequence[str]) -> str:
    """The mistakes that adaptation mends and makes most."""
    off = change * (1 - np.eye(len(names), dtype=int))
    mended, made = np.unravel_index(off.argmin(), off.shape), np.unravel_index(off.argmax(), off.shape)
    said = []
    if off[mended] < 0:
        said.append(f"Mended most: {names[mended[0]]} taken for {names[mended[1]]} ({-off[mended]} fewer).")
    if off[made] > 0:
        said.append(f"Made most: {names[made[0]]} taken for {names[made[1]]} ({off[made]} more).")
    return " ".join(said)


def samples(subject: Subject, folder: Path) -> list[Section]:
    """Saved and lost samples with their pictures or texts, where the cells are still beside the results."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {"saved": [], "lost": []}
    first = min((cell["seed"] for cell in subject.cells), default=0)
    for cell in (cell for cell in subject.cells if cell["seed"] == first):
        for sample in _samples(folder, subject.numbers(cell)["cell"]):
            found[sample["kind"]].append((cell["target"], sample))
    texts = {
        "saved": "Wrong without, right with: the largest rises in the probability of the true class.",
        "lost": "Right without, wrong with: the largest falls. Labels picked these samples to look at, "
        "nothing else.",
    }
    return [
        Section(
            f"Samples that were {kind}", texts[kind], cards=[_card(*entry) for entry in _spread_out(entries)]
        )
        for kind, entries in found.items()
        if entries
    ]


def _spread_out(entries: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """The first of every target, then the second of every target, up to as many as are shown."""
    by_target: dict[str, list] = {}
    for target, sample in entries:
        by_target.setdefault(target, []).append((target, sample))
    longest = max(map(len, by_target.values()))
    ordered = [own[i] for i in range(longest) for own in by_target.values() if i < len(own)]
    return ordered[:CARDS]


def _card(target: str, sample: dict[str, Any]) -> Card:
    title = f"{sample['true']}: said {sample['before']}, then {sample['after']}"
    text = f"target {target}; p({sample['true']}) {sample['p_before']:.2f} to {sample['p_after']:.2f}"
    quote = sample.get("text", "" if "picture" in sample else sample["id"])
    return Card(sample.get("picture", ""), title, text, good=sample["kind"] == "saved", quote=quote)


def _samples(folder: Path, key: str) -> list[dict[str, Any]]:
    try:
        return json.loads((folder / "cells" / f"{key}.json").read_text())["samples"]
    except (OSError, ValueError, KeyError):
        return []


def source_weights(subject: Subject) -> Section | None:
    """Do confidence and energy tell right answers from wrong ones?"""
    if subject.partial:
        return None
    rows, curves = [], {}
    for label, source in (("without", subject.before), ("with", subject.numbers)):
        found = [source(cell) for cell in subject.cells if "source_weights" in source(cell)]
        for signal in dict.fromkeys(name for numbers in found for name in numbers["source_weights"]):
            if signal == ("energy after" if label == "without" else "energy before"):
                continue  # the energy that belongs to this answer is the other one
            own = [
                numbers["source_weights"][signal] for numbers in found if signal in numbers["source_weights"]
            ]
            scores = [t["auroc"] for t in own if t["auroc"] is not None]
            curve = {s: float(np.mean([t["selective"][s] for t in own])) for s in own[0]["selective"]}
            rows.append(
                [
                    f"{signal.split()[0]}, {label}",
                    f"{np.mean(scores):.3f}" if scores else "-",
                    *(f"{100 * curve[s]:.1f}" for s in curve),
                ]
            )
            curves[f"{signal.split()[0]}, {label}"] = [100 * value for value in curve.values()]
    if not rows:
        return None
    shares = [float(s) for s in curve]
    error = [
        np.mean([s(cell)["calibration_error"] for cell in subject.cells])
        for s in (subject.before, subject.numbers)
    ]
    text = (
        "A signal is worth trusting when wrong answers have a lower one: AUROC 1 tells them apart always, "
        "0.5 is a coin. "
        "Answer only the samples that are trusted most, and accuracy should rise. Calibration error (gap "
        "between "
        f"confidence and accuracy): {100 * error[0]:.1f} points without, {100 * error[1]:.1f} with."
    )
    header = ["signal", "AUROC", *(f"best {100 * s:.0f}{words.GLUE}%" for s in shares)]
    draw = partial(
        figures.draw_lines,
        x=[100 * s for s in shares],
        lines=curves,
        xlabel="samples answered, %",
        ylabel="accuracy, %",
    )
    chart = figures.to_svg(draw, (5.6, 3.4), "accuracy against the share of samples that are answered")
    caption = (
        "Accuracy when only the most trusted samples are answered. See which line climbs most to the left."
    )
    table = Table(header, rows, "Mean over targets and seeds; accuracy in %.")
    return Section("Can an answer be trusted?", text, [table], [Figure([chart], caption)])
