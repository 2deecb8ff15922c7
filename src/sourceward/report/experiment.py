"""The page of one of the paper's experiments, and its finding in one sentence."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from sourceward._util.reading import inside, read_regular, regular_size
from sourceward._util.tables import Table
from sourceward.report.page import Figure, Page, Section

Numbers = dict[str, Any]


def experiment_page(results: dict[str, Any], folder: Path) -> Page:
    """Return the page of `results`; figures are read from `folder`."""
    tables = [
        Table(t["header"], t["rows"], t["caption"], t.get("strong", ()), t.get("groups", ()))
        for t in results["tables"]
    ]
    drawn = [
        Figure([inline(folder / figure["file"])], figure["caption"], wide=True)
        for figure in results["figures"]
        if inside(folder, folder / figure["file"]) and regular_size(folder / figure["file"])
    ]
    sections = [Section("Numbers", "", tables)]
    if drawn:
        sections.append(Section("Figures", "", figures=drawn))
    given = {**results["settings"].pop("settings", {}), **results["settings"]}
    rows = [[name, str(value)] for name, value in given.items() if value not in (None, "")]
    sections.append(Section("Settings", "", [Table(["setting", "value"], rows)]))
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    footer = [
        f"Run it again: {results['command']}",
        f"seeds {', '.join(map(str, results['seeds']))}",
        versions,
    ]
    title = f"sourceward reproduce {results['experiment']}"
    found = finding(results)
    notes = [results["about"], *results["notes"]] if found else results["notes"]
    # A number stays on the line of its unit.
    headline = (found or results["about"]).replace(" %", "\u00a0%")
    return Page(title, headline, notes, sections, footer)


def inline(file: Path) -> str:
    """Return an SVG file as an element of a page, without its namespaces."""
    text = read_regular(file, "config_bytes").decode()
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)


def finding(results: Mapping[str, Any]) -> str:
    """Return one sentence on the numbers of a results file; '' where there is nothing to state.

    >>> row = {"mean": 0.75, "against": "no adaptation", "gain": 0.01, "gain_low": -0.01, "gain_high": 0.03}
    >>> finding({"numbers": {"rows": {"no adaptation": {"mean": 0.74}, "adapted": row}}})
    'No clear difference: adapted, 75.0 %, +1.0 points against no adaptation (95 % interval -1.0 to +3.0).'
    """
    numbers = results.get("numbers") or {}
    for name, say in SENTENCES.items():
        if numbers.get(name):
            return say(numbers)
    return _best(numbers)  # rows without a name for all of them


def _best(rows: Mapping[str, Any]) -> str:
    """Return the best row that has a difference, oracles excluded."""
    known = {
        label: row
        for label, row in rows.items()
        if isinstance(row, dict) and "gain" in row and not label.startswith("ORACLE")
    }
    if not known:
        return ""
    label = max(known, key=lambda key: known[key]["mean"])
    row, picked = (
        known[label],
        f"best of {len(known)} rows, picked by these numbers" if len(known) > 1 else "",
    )
    low, gain, high = (100 * row[key] for key in ("gain_low", "gain", "gain_high"))
    says = "A clear gain" if low > 0 else "A clear loss" if high < 0 else "No clear difference"
    if low == gain == high == 0:
        says = "No difference"
    return (
        f"{says}: {label}, {100 * row['mean']:.1f} %, {gain:+.1f} points against {row['against']} "
        f"(95 % interval {low:+.1f} to {high:+.1f}{f'; {picked}' if picked else ''})."
    )


def _table(numbers: Numbers) -> str:
    """Return the best adapter of a comparison."""
    rows = {
        row["label"]: row | {"against": "no adaptation"}
        for row in numbers["table"]
        if row["method"] != "none" and not row["oracle"] and not row["control"]
    }
    return _best(rows)


def _steps(numbers: Numbers) -> str:
    """Return the number of steps at which p(z|x) is best; without an interval."""
    mode = "p(z|x)" if "p(z|x)" in numbers["accuracy"] else next(iter(numbers["accuracy"]))
    by_steps = dict(zip(numbers["steps"], numbers["accuracy"][mode]))
    best = max(by_steps, key=lambda steps: by_steps[steps])
    if not best:
        return f"No number of steps does better than none: {by_steps[0]:.1f} % with {mode}."
    return (
        f"With {mode} accuracy is best after {best} steps, {by_steps[best]:.1f} % against "
        f"{by_steps[0]:.1f} % without steps (no interval was computed)."
    )


def _sources(numbers: Numbers) -> str:
    """Return how many sources gain by their own chains."""
    every = numbers["sources"].values()
    better = sum(source["after"] > source["before"] for source in every)
    lower = sum(source["energy_after"] < source["energy_before"] for source in every)
    change = 100 * mean(source["after"] - source["before"] for source in every)
    return (
        f"A source alone is more accurate after adaptation in {better} of {len(every)} cases, {change:+.1f} "
        f"points on average (no interval was computed); its energy falls in {lower}."
    )


def _targets(numbers: Numbers) -> str:
    """Return whether targets come closer, or how many predictions are saved and lost."""
    every = list(numbers["targets"].values())
    if "saved" in every[0]:
        saved, lost = (sum(target[key] for target in every) for key in ("saved", "lost"))
        more = "more than" if saved > lost else "fewer than" if saved < lost else "as many as"
        return f"Adaptation saves {saved:,} predictions, {more} the {lost:,} that it loses (one seed)."
    if "auroc" in every[0]:
        trust = mean(target["auroc"]["trust"] or 0.5 for target in every)  # none where all are right
        stream = 100 * mean(target["streams"]["stream, shuffled"] for target in every)
        return f"Trust has a mean AUROC of {trust:.2f}; a shuffled stream gains {stream:+.1f} points."
    if "distance_after" not in every[0]:  # by source
        every = [source for target in every for source in target.values()]
    closer = sum(one["distance_after"] < one["distance_before"] for one in every)
    return (
        f"{closer} of {len(every)} times a target comes closer to the mean of a source on the map (one seed)."
    )


def _separation(numbers: Numbers) -> str:
    every = numbers["separation"].values()
    wider = sum(target["z"] > target["x"] for target in every)
    return f"z separates the classes more than x on {wider} of {len(every)} targets (one seed)."


def _cost(numbers: Numbers) -> str:
    seconds = {int(steps): value for steps, value in numbers["prediction_seconds"].items()}
    longest = max(seconds)
    return (
        f"A batch of {numbers['batch']} takes {1000 * seconds[0]:.1f} ms without steps and "
        f"{1000 * seconds[longest]:.1f} ms with {longest}, on {numbers['device']}."
    )


SENTENCES: dict[str, Callable[[Numbers], str]] = {
    "rows": lambda numbers: _best(numbers["rows"]),
    "table": _table,
    "held_out_sources": lambda numbers: _best(numbers["held_out_sources"]),
    "test_time": lambda numbers: _best(numbers["test_time"]),
    "accuracy": _steps,
    "sources": _sources,
    "targets": _targets,
    "separation": _separation,
    "prediction_seconds": _cost,
}
"""By the name of an experiment's numbers."""
