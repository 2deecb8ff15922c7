"""The page of a bench: does adaptation help, by how much, how sure, where, and at what cost?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.tables import Table, requirements, some_targets, target_names
from sourceward.report import bench_sections as parts
from sourceward.report.context import cost, inapplicable
from sourceward.report.page import Page, Section
from sourceward.report.subject import NONE, Subject, choose_subject, in_part, samples

SELECTION = {
    "source": "Settings with several candidates were chosen on validation rows of the sources.",
    "last": "Nothing was selected: every setting is as given, weights are those of the last iteration.",
    "oracle": "ORACLE rows were chosen by the target's labels: an upper bound, never a result.",
}


def bench_page(results: dict[str, Any], folder: Path, method: str | None = None) -> Page:
    """Return the page of `results`; images and texts of samples come from the runs in `folder`."""
    footer = [
        f"Run it again: {results['command']}",
        f"seeds {', '.join(map(str, results['seeds']))}; "
        + ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
    ]
    title = f"sourceward bench: {', '.join(results['classes'])}"
    if not results["table"]:
        return Page(title, "No run finished.", failures(results), [], footer)
    subject = choose_subject(results, method)
    cost_text = cost(results)
    sections = [
        parts.methods(results),
        parts.targets(subject),
        parts.step_curves(results),
        parts.classes(subject),
        parts.confusion(subject),
        *samples(subject, folder),
        parts.uncertainty(subject),
        Section("Cost", cost_text) if cost_text else None,
        settings_section(results["settings"]),
    ]
    # A number stays on the line of its unit.
    text = headline(subject).replace(" %", "\u00a0%")
    return Page(title, text, notes(results, subject), [s for s in sections if s], footer)


def headline(subject: Subject) -> str:
    """Return one sentence: whether adaptation helps, by how much, with its interval."""
    row = subject.row
    low, gain, high = (100 * row[key] for key in ("gain_low", "gain", "gain_high"))
    says = "helps" if low > 0 else "hurts" if high < 0 else "makes no clear difference"
    seeds = len({run["seed"] for run in subject.runs})
    domains = len(row["targets"])
    over = f"{domains} unseen domain{'s' if domains > 1 else ''}, {seeds} seed{'s' if seeds > 1 else ''}"
    if not any(target["saved"] or target["lost"] for target in row["targets"].values()):
        return f"{subject.title} makes no difference: {100 * row['mean']:.1f} % with and without ({over})."
    return (
        f"{subject.title} {says}: {100 * row['mean'] - gain:.1f} % becomes {100 * row['mean']:.1f} % "
        f"({gain:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}; {over})."
    )


def notes(results: dict[str, Any], subject: Subject) -> list[str]:
    """Return the sentences that qualify the headline."""
    rows = {row["method"]: row for row in results["table"]}
    found = [_by_target(subject)]
    compared = "linear" in rows and rows["linear"]["targets"].keys() == subject.row["targets"].keys()
    if compared and not subject.partial:
        ahead = 100 * (subject.row["mean"] - rows["linear"]["mean"])
        found.append(
            f"A linear classifier on the same features reaches {100 * rows['linear']['mean']:.1f} %: "
            f"adaptation is {abs(ahead):.1f} points {'above' if ahead >= 0 else 'below'} it."
        )
    found += _baselines(rows, subject)
    selected = next((row for row in rows.values() if row["method"].startswith("selected:")), None)
    if selected is not None and selected is not subject.row:
        idle = sum(key == NONE for key in selected["chosen"].values())
        found.append(
            f"Chosen without the target's labels, the number of steps brings {100 * selected['gain']:+.1f} "
            f"points; no step was chosen in {idle} of {len(selected['chosen'])} trainings."
        )
    return [*found, *_expected_gain(subject), SELECTION[results["selection"]], *failures(results)]


def failures(results: dict[str, Any]) -> list[str]:
    """Return a line for each method that failed, and one for those that do not apply."""
    broken = {run["method"]: run["reason"] for run in results["failed"] if not run.get("unsuitable")}
    return [
        *(f"{method} failed in some runs: {reason}" for method, reason in broken.items()),
        *inapplicable(results),
    ]


def _by_target(subject: Subject) -> str:
    each = subject.row["targets"]
    gains = {name: 100 * each[where]["gain"] for where, name in subject.names.items()}
    if len(gains) > 8:
        better = sum(gain > 0 for gain in gains.values())
        return (
            f"{better} of {len(gains)} targets gain; from {min(gains.values()):+.1f} to "
            f"{max(gains.values()):+.1f}."
        )
    return "By target: " + ", ".join(f"{name} {gain:+.1f}" for name, gain in gains.items()) + "."


def _baselines(rows: dict[str, Any], subject: Subject) -> list[str]:
    """Return the best other method that was evaluated on all rows of all targets, and what it requires."""
    part, every = in_part(subject.runs), target_names(rows.values())
    others = [
        row
        for key, row in rows.items()
        if not row["oracle"] and "traits" in row and key.split(":")[0] not in (NONE, "ebtsa")
        if key not in part and not some_targets(row, every)
    ]
    if not others:
        return []
    best = max(others, key=lambda row: row["mean"])
    needs = requirements(best)
    return [
        f"Best of the other methods: {best['label']}, {100 * best['mean']:.1f} %"
        + (f"; it requires {needs}, ours none of these." if needs != "-" else ".")
    ]


def _expected_gain(subject: Subject) -> list[str]:
    """Return the expected gain beside the measured one."""
    pairs = [
        (expected, subject.numbers(run)["gain"])
        for run in subject.runs
        if (expected := subject.expected_gain(run)) is not None
    ]
    if not pairs:
        return []
    expected, measured = (100 * np.mean(values) for values in zip(*pairs))
    return [
        f"Expected gain by leave-one-domain-out validation on the sources: {expected:+.1f} points. "
        f"Measured: {measured:+.1f}."
    ]


def settings_section(settings: dict[str, Any]) -> Section:
    """Return a row for each setting, `finetune.max_iter` for nested ones."""
    rows = [[name, _plain(value)] for name, value in _flat(settings)]
    return Section("Settings", tables=[Table(["setting", "value"], rows)])


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
