"""The page of one of the paper's experiments: its finding, tables and figures."""

import re
from pathlib import Path
from typing import Any

from sourceward._util.tables import Table
from sourceward.report.finding import finding
from sourceward.report.page import Figure, Page, Section


def experiment_page(results: dict[str, Any], folder: Path) -> Page:
    """Return the page of `results`; figures are read from `folder`."""
    tables = [
        Table(t["header"], t["rows"], t["caption"], t.get("strong", ()), t.get("groups", ()))
        for t in results["tables"]
    ]
    drawn = [
        Figure([inline(folder / figure["file"])], figure["caption"], wide=True)
        for figure in results["figures"]
        if (folder / figure["file"]).is_file()
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
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", file.read_text())
