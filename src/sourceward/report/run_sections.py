"""The sections of a run's page, each from plain data; one that has nothing to show is None."""

from typing import TYPE_CHECKING, Any

import numpy as np

from sourceward._util.tables import GLUE, Table, gain_text, not_covered
from sourceward.report.bench_sections import class_section, confusion_section
from sourceward.report.figures import STYLES, to_svg
from sourceward.report.page import Figure, Section
from sourceward.report.subject import TEXTS, in_turn, sample_card

if TYPE_CHECKING:
    from sourceward.report.run import Run

MANY_SOURCES = 4
KINDS = {
    "saved": "Samples that adaptation saved",
    "lost": "Samples that adaptation lost",
    "wrong": "The most confident mistakes",
}
MISTAKES = "Wrong predictions with the highest probability. Labels were used to find these samples only."


WEIGHTS = "weights by energy"


def taken(run: "Run") -> list[str]:
    """Return what was switched on: Langevin steps or weights by energy, and transforms."""
    config = run.config
    steps, tta, expected = config["adapt"]["num_steps"], config.get("tta", ""), config.get("expected_gain")
    weights = expected is not None and expected["adapts"] and config["adapt"].get("aggregation") != "mean"
    return [*([f"{steps} steps"] if steps else [WEIGHTS] * weights), *([tta] if tta else [])]


def adaptation(run: "Run") -> str:
    """Return what adaptation does and what it should gain, in one sentence."""
    expected, sources = run.config.get("expected_gain"), len(run.config["sources"])
    if expected is None and sources < 3:
        return f"Nothing was chosen or estimated: validation needs three sources, and there are {sources}."
    if expected is None:
        return "The number of steps was given and not chosen, so nothing was estimated."
    if more := not_covered(expected.get("tta", ""), run.config.get("tta", "")):
        return more
    if not expected["adapts"]:
        return "Adaptation is off: no candidate has a safe gain on held-out sources."
    return (
        f"Adaptation is on ({' and '.join(taken(run))}). Expected gain: {100 * expected['gain']:+.1f} points "
        f"({100 * expected['low']:+.1f} to {100 * expected['high']:+.1f} on one new domain)."
    )


def measured(run: "Run") -> Section | None:
    """Return accuracy and gain of every evaluated domain, beside what was expected."""
    if not run.rows:
        return None
    rows = [
        [
            f"{row.name} (trained on)" if row.scores["trained_on"] else row.name,
            f"{row.scores['samples']:,}",
            _percent(row.scores["unadapted"]),
            _percent(row.scores["adapted"]),
            gain_text(row.scores, GLUE),
        ]
        for row in run.rows
    ]
    header = ["domain", "samples", "without, %", "with, %", "gain (95 % interval)"]
    balance = [
        [
            row.name,
            _percent(row.scores["majority"]),
            _percent(row.scores["balanced_accuracy"]["adapted"]),
            _percent(row.scores["macro_f1"]["adapted"]),
        ]
        for row in run.rows
    ]
    more = Table(
        ["domain", "largest class, %", "balanced accuracy, %", "macro-F1, %"],
        balance,
        "With adaptation. Largest class: the accuracy of always predicting it.",
    )
    return Section("Expected and measured", "", [Table(header, rows), more], _expected_figure(run))


def _expected_figure(run: "Run") -> list[Figure]:
    expected = run.expected
    if expected is None:
        return []
    held = expected["accuracy_per_source"]
    names = [*(f"{name}, held out" for name in held), *(row.name for row in run.unseen)]
    value = [100 * share for share in (*held.values(), *(row.scores["adapted"] for row in run.unseen))]
    flags = [False] * len(held) + [True] * len(run.unseen)
    low, mid, high = (100 * expected[key] for key in ("accuracy_low", "accuracy", "accuracy_high"))
    panel = {"plot": "expected", "names": names, "value": value, "measured": flags}
    panel |= {"low": low, "high": high, "middle": mid, "xlabel": "accuracy, %"}
    chart = to_svg(panel, (5.0, 0.8 + 0.3 * len(names)), "expected and measured accuracy")
    caption = (
        "Hollow: sources when they were held out. Filled: measured. Grey: the 90 % interval that was "
        "expected on one new domain, and its mean."
    )
    return [Figure([chart], caption)]


def chosen(run: "Run") -> Section | None:
    """Return the candidates of validation, and the held-out sources under what was chosen."""
    expected, on = run.config.get("expected_gain"), taken(run)
    if expected is None:
        return Section("What was chosen, and why", adaptation(run))
    candidates = [
        [
            name,
            f"{100 * np.mean([*gains.values()]):+.1f}",
            f"{100 * min(gains.values()):+.1f}",
            "chosen" if name in on else "",
        ]
        for key, gains in expected.get("tried", {}).items()
        for name in [WEIGHTS if key == "0 steps" else key]
    ]
    strong = [number for number, row in enumerate(candidates) if row[-1]]
    caption = "Gain on held-out sources in points. Transforms are tried on top of the steps that were chosen."
    tables = [Table(["candidate", "mean gain", "worst source", ""], candidates, caption, strong)]
    held = [
        [name, _percent(after - gain), _percent(after), f"{100 * gain:+.1f}"]
        for name, after in expected.get("accuracy_per_source", {}).items()
        for gain in [expected["per_source"][name] if expected["adapts"] else 0.0]
    ]
    tables.append(Table(["held-out source", "without, %", "with, %", "gain"], held))
    text = (
        "Each source was held out once, and a model of the others predicted it. A candidate may be switched "
        "on if the 90 % interval of its mean gain over domains is above 0 and no held-out source loses more "
        "than its noise; transforms must gain more than half a point."
    )
    return Section("What was chosen, and why", text, [table for table in tables if table.rows])


def data(run: "Run") -> Section:
    """Return the sources: samples of each, and of each class."""
    config = run.config
    given, classes = config.get("data", {}), config["classes"]
    counts = np.array(given.get("counts") or np.zeros((0, 0)))
    backbone = config.get("training", {}).get("backbone") or "none"
    frozen = " (frozen)" if config.get("training", {}).get("freeze") else ""
    text = (
        f"{given.get('name', '')}: {given.get('samples', 0):,} samples of {len(config['sources'])} sources, "
    )
    text += f"{len(classes)} classes. Backbone: {backbone}{frozen}."
    tables = []
    if counts.size:
        names = given["sources"]
        rows = [
            [name, f"{own.sum():,}", f"{100 * own.max() / max(own.sum(), 1):.0f}{GLUE}%"]
            for name, own in zip(names, counts)
        ]
        tables.append(Table(["source", "samples", "largest class"], rows))
        if len(names) <= MANY_SOURCES and len(given["classes"]) <= 24:
            rows = [[name, *(f"{n:,}" for n in own)] for name, own in zip(given["classes"], counts.T)]
            tables.append(Table(["class", *names], rows))
    return Section("Data", text, tables)


def classes(run: "Run") -> Section | None:
    """Return the accuracy of each class over the unseen domains."""
    pair = _counts(run)
    if pair is None:
        return None
    before, after = pair
    shown = {
        name: (float(own.sum()), *(100 * float(counts[i, i]) / own.sum() for counts in (before, after)))
        for i, (name, own) in enumerate(zip(run.config["classes"], before))
        if own.sum()
    }
    where = ", ".join(row.name for row in run.unseen[:4])
    return class_section(shown, f"On {where}, the largest gain first.")


def confusion(run: "Run") -> Section | None:
    """Return the confusion without and with adaptation; one chart where they are the same."""
    pair = _counts(run)
    if pair is None:
        return None
    before, after = pair
    same = bool((before == after).all())
    return confusion_section(
        {"": after} if same else {"without": before, "with": after}, run.config["classes"]
    )


def _counts(run: "Run") -> tuple[np.ndarray, np.ndarray] | None:
    """Confusion without and with adaptation, summed over the unseen domains."""
    found = [row.scores["confusion"] for row in run.unseen]
    if not found or None in found:
        return None
    before, after = (
        np.sum([np.array(own[way]) for own in found], axis=0) for way in ("unadapted", "adapted")
    )
    return before, after


def samples(run: "Run") -> list[Section]:
    """Return saved and lost samples and mistakes, with their images or texts."""
    sections = []
    for kind, title in KINDS.items():
        cards = in_turn(
            [
                [sample_card(row.name, own) for own in row.scores.get("examples", []) if own["kind"] == kind]
                for row in run.unseen
            ]
        )
        if cards:
            sections.append(Section(title, TEXTS.get(kind, MISTAKES), cards=cards))
    return sections


def trust(run: "Run") -> Section | None:
    """Return the error of the samples that are answered against their share, expected and measured."""
    fitted = (run.config.get("adapter") or {}).get("trust")
    curves: dict[str, dict[str, float]] = {"held-out sources": fitted["error"]} if fitted else {}
    curves |= {row.name: row.scores["trust"]["risk"] for row in run.unseen[: len(STYLES) - 1]}
    if not curves:
        return None
    shares = list(next(iter(curves.values())))
    thresholds = run.unseen[0].scores["trust"]["thresholds"] if run.unseen else {}
    shown = list(curves)[:3]
    rows = [
        [
            f"{100 * float(share):g}{GLUE}%",
            *([f"{thresholds[share]:.2f}"] if thresholds else []),
            *(_percent(curves[name][share]) for name in shown),
        ]
        for share in shares
    ]
    header = ["answered", *(["threshold"] if thresholds else []), *(f"error, {name}" for name in shown)]
    lines = {name: [100 * own[share] for share in shares] for name, own in curves.items()}
    panel: dict[str, Any] = {"plot": "lines", "x": [100 * float(share) for share in shares], "lines": lines}
    panel |= {"xlabel": "samples answered, %", "ylabel": "error, %", "from_zero": True}
    chart = to_svg(panel, (5.6, 3.4), "error against the share of samples that are answered")
    text = (
        "Trust is the estimated probability that a label is right. Error of the most trusted samples, in %, "
        "where the others are not answered. With its threshold, predict --abstain-below answers that share "
        "of the held-out sources."
    )
    gaps = [(row.name, row.scores["trust"]["calibration_error"]["trust"]) for row in run.unseen[:4]]
    if gaps:
        stated = ", ".join(f"{name} {100 * gap:.1f}" for name, gap in gaps)
        text += f" Gap between trust and accuracy in points: {stated}."
    caption = "A useful trust: the error falls to the left. Unseen domains are answered less often."
    return Section("Trust and coverage", text, [Table(header, rows)], [Figure([chart], caption)])


def cost(run: "Run") -> Section | None:
    """Return the seconds of each part of the fit, memory, and the speed of evaluation."""
    spent, seconds = run.config.get("cost") or {}, (run.config.get("metrics") or {}).get("seconds")
    peak = max((own.get("peak_memory_mb") or 0 for own in spent.values()), default=0)
    rows = [[name, f"{value:,.1f}"] for name, value in spent.get("parts", {}).items()]
    words = [] if seconds is None else [f"The fit took {seconds:,.0f} s"]
    words += [f"peak memory {peak:,.0f} MB"] if peak else []
    for own in run.evaluations[:1]:
        count = sum(scores["samples"] for scores in own["domains"].values())
        words.append(f"the evaluation took {own['seconds']:,.1f} s for {count:,} samples")
    if not words and not rows:
        return None
    return Section(
        "Cost", f"{'; '.join(words)}.", [Table(["part of the fit", "seconds"], rows)] if rows else []
    )


def _percent(share: Any) -> str:
    return f"{100 * share:.1f}"
