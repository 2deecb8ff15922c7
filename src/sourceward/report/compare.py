"""The page of several runs side by side: what was expected of each, and what was measured."""

from collections.abc import Sequence

from sourceward._util.tables import GLUE, Table
from sourceward.report.figures import to_svg
from sourceward.report.page import Figure, Page, Section
from sourceward.report.run import Run, expected_text
from sourceward.report.run_sections import taken


def compare_page(name: str, runs: Sequence[Run]) -> Page:
    """Return the page of the runs in a folder."""
    best = max((run for run in runs if _measured(run) is not None), key=_accuracy, default=None)
    targets = {tuple(sorted(row.name for row in run.unseen)) for run in runs if run.rows}
    notes = []
    if best is None:
        text = f"{len(runs)} runs, none of them evaluated yet."
    elif len(targets) > 1:
        text = f"{len(runs)} runs, evaluated on different domains: their accuracies are not comparable."
    else:
        text = f"Of {len(runs)} runs, {best.name} is the most accurate: {100 * _accuracy(best):.1f}{GLUE}%."
        notes.append("Chosen by target labels: an upper bound of what a choice among these runs can reach.")
    notes.append(
        "Expected: by leave-one-domain-out validation on the sources; 90 % interval for a new domain."
    )
    strong = [number for number, run in enumerate(runs) if run is best and len(targets) == 1]
    rows = [[run.name, *_cells(run)] for run in runs]
    header = ["run", "expected, %", "measured, %", "expected gain", "measured gain"]
    numbers = Table(header, rows, "Measured: mean over the unseen domains that were evaluated.", strong)
    about = Table(["run", "data", "backbone", "adaptation"], [[run.name, *_about(run)] for run in runs])
    sections = [Section("Expected and measured", "", [numbers], _figure(runs)), Section("Runs", "", [about])]
    return Page(f"sourceward: {name}", text, notes, sections)


def _measured(run: Run) -> tuple[float, float] | None:
    """Mean accuracy and gain over the unseen domains."""
    rows = [row.scores for row in run.unseen]
    if not rows:
        return None
    return sum(own["adapted"] for own in rows) / len(rows), sum(own["gain"] for own in rows) / len(rows)


def _accuracy(run: Run) -> float:
    found = _measured(run)
    return -1.0 if found is None else found[0]


def _cells(run: Run) -> list[str]:
    expected, measured = run.expected, _measured(run)
    gain = "-" if expected is None else f"{100 * expected['gain']:+.1f}"
    stated = "-" if expected is None else expected_text(expected).replace(" %", "")
    if measured is None:
        return [stated, "-", gain, "-"]
    return [stated, f"{100 * measured[0]:.1f}", gain, f"{100 * measured[1]:+.1f}"]


def _about(run: Run) -> list[str]:
    config = run.config
    training = config.get("training", {})
    frozen = ", frozen" if training.get("freeze") else ""
    backbone = training.get("backbone")
    held = ", ".join(row.name for row in run.unseen if not row.scores["trained_on"]) or "-"
    return [
        f"{config.get('data', {}).get('name', '-')}; {len(config['sources'])} sources; evaluated on {held}",
        "features" if backbone is None else f"{backbone}{frozen}",
        " and ".join(taken(run)) or "off",
    ]


def _figure(runs: Sequence[Run]) -> list[Figure]:
    """Expected and measured accuracy of the runs that have both."""
    both = [(run, run.expected, _measured(run)) for run in runs]
    pairs = [(run.name, 100 * e["accuracy"], 100 * m[0]) for run, e, m in both if e and m]
    if not pairs:
        return []
    names, before, after = zip(*pairs)
    panel = {"plot": "pairs", "names": names, "before": before, "after": after, "xlabel": "accuracy, %"}
    chart = to_svg(panel, (5.0, 0.8 + 0.3 * len(names)), "expected and measured accuracy of each run")
    return [Figure([chart], "Hollow: expected on an unseen domain. Filled: measured.")]
