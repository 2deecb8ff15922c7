"""Read results, and turn one folder of any kind into a page."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.reading import regular_size
from sourceward._util.values import read_json, short
from sourceward.report.bench import bench_page
from sourceward.report.compare import compare_page
from sourceward.report.experiment import experiment_page
from sourceward.report.grid import grid_page
from sourceward.report.page import Page, render
from sourceward.report.run import CONFIG, read_run, run_page

FILE = "results.json"


@contextmanager
def readable(folder: str | Path) -> Iterator[None]:
    """Within this context, whatever damaged results lead to is an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(
            f"The results in '{folder}' are damaged, or were written by another version "
            f"({type(error).__name__}: {short(error)}). Run the command that wrote them again."
        ) from error


def report_html(folder: str | Path, method: str | None = None) -> tuple[str, str]:
    """Return the headline and the HTML of `folder`; see `report_page`."""
    with readable(folder):
        page = report_page(folder, method)
        return str(page.headline), render(page)


def report_page(folder: str | Path, method: str | None = None) -> Page:
    """Return the page of `folder`; `method` is the one that a bench's page is about."""
    folder = Path(folder)
    with readable(folder):
        return _page(folder, method)


def _page(folder: Path, method: str | None) -> Page:
    if regular_size(folder / FILE) is None:
        if method is not None:
            raise InputError(
                f"--adapter is for results of `sourceward bench`, which '{folder}' does not hold."
            )
        return _page_of_runs(folder)
    results = read_results(folder)
    if results.get("kind") == "bench" and "runs" in results:
        rows = {row["method"]: row for row in results["table"]}
        if method is not None and method not in rows:
            raise unknown_name("adapter", method, rows)
        return bench_page(results, folder, method)
    if method is not None:
        raise InputError(f"--adapter is for results of `sourceward bench`, which '{folder}' does not hold.")
    if results.get("kind") == "grid":
        return grid_page(results)
    if results.get("kind") == "experiment":
        return experiment_page(results, folder)
    if "verdicts" in results:
        page = folder / "report.html"
        do = f"Open '{page}'" if page.exists() else "Run it again"
        raise InputError(f"'{folder / FILE}' is of `sourceward demo`, which makes its own page. {do}.")
    raise InputError(
        f"'{folder / FILE}' is of an earlier version or of another command, which has no page here. "
        "Run `sourceward bench` again, into a new folder."
    )


def _page_of_runs(folder: Path) -> Page:
    """Return the page of a model folder, or of a folder of several."""
    if regular_size(folder / CONFIG) is not None:
        return run_page(read_run(folder))
    below = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    if not below:
        raise InputError(
            f"Expected {FILE} in '{folder}', or {CONFIG} in it or in its subfolders, but found none. Name a "
            "folder that `sourceward fit`, `bench` or `reproduce` wrote, or one that holds runs of `fit`."
        )
    return compare_page(folder.resolve().name, [read_run(path) for path in below])


def read_results(folder: Path) -> dict[str, Any]:
    """Read the results of one folder."""
    file = folder / FILE
    if regular_size(file) is None:
        raise InputError(
            f"Expected {FILE} in '{folder}', but found none. Name a folder that `sourceward bench` or "
            "`sourceward reproduce` wrote."
        )
    try:
        results = read_json(file)
    except InputError:
        raise
    except ValueError:
        raise InputError(f"'{file}' is damaged. Run the command that wrote it again.") from None
    return results if isinstance(results, dict) else {}


def read_all(folder: str | Path) -> dict[str, dict[str, Any]]:
    """Read the results of all folders below, by name and in the order of names."""
    folder = Path(folder)
    files = sorted(folder.rglob(FILE))
    if not files:
        raise InputError(f"Expected {FILE} somewhere in '{folder}', but found none.")
    root = folder.resolve().parent
    return {file.parent.resolve().relative_to(root).as_posix(): read_results(file.parent) for file in files}
