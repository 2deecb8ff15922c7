"""The page of a bench: does adaptation help here, by how much, how sure, where, and whom does it cost?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sourceward.report import bench_sections as parts
from sourceward.report.beside import absent, cost
from sourceward.report.page import Page, Section, Table
from sourceward.report.subject import NONE, Subject, choose_subject, in_part
from sourceward.report.words import asks_for, short_names

WHERE = {
    "source": "Settings with several candidates were chosen on validation rows of the sources.",
    "leave-one-source-out": "Settings with several candidates were chosen by leaving out each source in "
    "turn.",
    "last": "Nothing was selected: every setting is as given, weights are those of the last iteration.",
    "oracle": "ORACLE rows chose by the target's own labels: an upper bound, never a result.",
}


def bench_page(results: dict[str, Any], folder: Path, adapter: str | None = None) -> Page:
    """The page of `results`; pictures and texts of samples come from the cells in `folder`."""
    footer = [
        f"Run it again: {results['command']}",
        f"seeds {', '.join(map(str, results['seeds']))}; "
        + ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
    ]
    title = f"sourceward bench: {', '.join(results['classes'])}"
    if not results["table"]:
        return Page(title, "No cell finished.", failures(results), [], footer)
    subject = choose_subject(results, adapter)
    sections = [
        parts.contestants(results),
        parts.targets(subject),
        parts.step_curves(results),
        parts.classes(subject),
        parts.confusion(subject),
        *parts.samples(subject, folder),
        parts.source_weights(subject),
        _cost(results),
        _settings(results),
    ]
    # A number stays on the line of its unit.
    told = headline(subject).replace(" %", "\u00a0%")
    return Page(title, told, notes(results, subject), [s for s in sections if s], footer)


def headline(subject: Subject) -> str:
    """Does it help, by how much, how sure."""
    row = subject.row
    low, gain, high = (100 * row[key] for key in ("gain_low", "gain", "gain_high"))
    says = "helps" if low > 0 else "hurts" if high < 0 else "makes no clear difference"
    seeds = len({cell["seed"] for cell in subject.cells})
    domains = len(row["targets"])
    over = f"{domains} unseen domain{'s' if domains > 1 else ''}, {seeds} seed{'s' if seeds > 1 else ''}"
    if not any(target["saved"] or target["lost"] for target in row["targets"].values()):
        return f"{subject.title} makes no difference: {100 * row['mean']:.1f} % with and without ({over})."
    return (
        f"{subject.title} {says}: {100 * row['mean'] - gain:.1f} % becomes {100 * row['mean']:.1f} % "
        f"({gain:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}; {over})."
    )


def notes(results: dict[str, Any], subject: Subject) -> list[str]:
    """What qualifies the headline."""
    rows = {row["adapter"]: row for row in results["table"]}
    said = [_by_target(subject)]
    if "linear" in rows and not subject.partial:
        ahead = 100 * (subject.row["mean"] - rows["linear"]["mean"])
        said.append(
            f"A linear classifier on the same features, trained the ordinary way, reaches "
            f"{100 * rows['linear']['mean']:.1f} %: adaptation ends {abs(ahead):.1f} points "
            f"{'above' if ahead >= 0 else 'below'} it."
        )
    said += _peers(rows, subject)
    selected = next((row for row in rows.values() if row["adapter"].startswith("selected:")), None)
    if selected is not None and selected is not subject.row:
        idle = sum(key == NONE for key in selected["chosen"].values())
        said.append(
            f"Chosen without the target's labels, the number of steps brings {100 * selected['gain']:+.1f} "
            f"points; the choice was no step at all in {idle} of {len(selected['chosen'])} trainings."
        )
    said += _promise(subject)
    said.append(WHERE[results["selection"]])
    return said + failures(results)


def failures(results: dict[str, Any]) -> list[str]:
    """A line for each adapter that failed, and one for those that do not apply."""
    broken = {c["adapter"]: c["reason"] for c in results["failed"] if not c.get("unsuitable")}
    said = [f"{adapter} failed in some cells: {reason}" for adapter, reason in broken.items()]
    return [*said, *absent(results)]


def _by_target(subject: Subject) -> str:
    each = subject.row["targets"]
    gains = {name: 100 * each[place]["gain"] for place, name in short_names(each).items()}
    if len(gains) > 8:
        better = sum(gain > 0 for gain in gains.values())
        return (
            f"{better} of {len(gains)} targets gain; from {min(gains.values()):+.1f} to "
            f"{max(gains.values()):+.1f}."
        )
    return "By target: " + ", ".join(f"{name} {gain:+.1f}" for name, gain in gains.items()) + "."


def _peers(rows: dict[str, Any], subject: Subject) -> list[str]:
    """The best method of others on all rows, and what it asks for."""
    part = in_part(subject.cells)
    others = [
        row
        for key, row in rows.items()
        if not row["oracle"] and "traits" in row and key.split(":")[0] not in (NONE, "ebtsa")
        if key not in part
    ]
    if not others:
        return []
    best = max(others, key=lambda row: row["mean"])
    asks = asks_for(best)
    return [
        f"Best of the other methods: {best['label']}, {100 * best['mean']:.1f} %"
        + (f"; it asks for {asks}, where ours asks for nothing." if asks != "-" else ".")
    ]


def _promise(subject: Subject) -> list[str]:
    """What was expected before the target was seen, beside what came."""
    pairs = [
        (expected_gain, subject.numbers(cell)["gain"])
        for cell in subject.cells
        if (expected_gain := subject.promised(cell)) is not None
    ]
    if not pairs:
        return []
    promised, measured = np.mean([p for p, _ in pairs]), np.mean([m for _, m in pairs])
    return [
        f"Promised before the target was seen: {100 * promised:+.1f} points. Measured: {100 * measured:+.1f}."
    ]


def _cost(results: dict[str, Any]) -> Section | None:
    """Of training and prediction, where it was measured."""
    said = cost(results)
    return Section("What does it cost?", said) if said else None


def _settings(results: dict[str, Any]) -> Section:
    rows = [[name, _plain(value)] for name, value in _flat(results["settings"])]
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
