"""From a results folder to a page, whatever kind of results it holds."""

import json
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError, unknown_name
from sourceward.report.bench import bench_page
from sourceward.report.experiment import experiment_page
from sourceward.report.page import Page

FILE = "results.json"


def report_page(folder: str | Path, adapter: str | None = None) -> Page:
    """The page of `folder`; `adapter` is the one that a bench's page is about."""
    folder = Path(folder)
    results = read_results(folder)
    if results.get("kind") == "bench":
        rows = {row["adapter"]: row for row in results["table"]}
        if adapter is not None and adapter not in rows:
            raise unknown_name("adapter", adapter, rows)
        return bench_page(results, folder, adapter)
    if adapter is not None:
        raise InputError(f"--adapter is for results of `sourceward bench`, which '{folder}' does not hold.")
    if results.get("kind") == "experiment":
        return experiment_page(results, folder)
    if "verdicts" in results:
        page = folder / "report.html"
        do = f"Open '{page}'" if page.exists() else "Run it again"
        raise InputError(f"'{folder / FILE}' is of `sourceward demo`, which makes a page by itself. {do}.")
    raise InputError(
        f"'{folder / FILE}' is of an earlier kind or of another command, which has no page here. "
        "Run `sourceward bench` again, into a new folder."
    )


def read_results(folder: Path) -> dict[str, Any]:
    file = folder / FILE
    if not file.is_file():
        raise InputError(
            f"Expected {FILE} in '{folder}', but found none. Name a folder that `sourceward bench` or "
            "`sourceward reproduce` wrote."
        )
    try:
        results = json.loads(file.read_text())
    except ValueError:
        raise InputError(f"'{file}' is damaged. Run the command that wrote it again.") from None
    return results if isinstance(results, dict) else {}
