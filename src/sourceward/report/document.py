"""All results below a folder as one Markdown page, with published numbers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sourceward._util.tables import gain_text, mean_text, short_names, some_targets, target_of
from sourceward.report.context import cost, inapplicable, shortfalls, uncertainty
from sourceward.report.experiment import finding
from sourceward.report.grid import grid_sections
from sourceward.report.subject import AUTO, NONE

INTRODUCTION = (
    "# Results\n\nWritten by `sourceward report {folder} --markdown`. Every number comes from the file named "
    "beside it, which also holds command, seeds and versions. Target labels are used to count right "
    "predictions; a table whose selection uses them is named oracle."
)


def document(
    folder: str, results: Mapping[str, dict[str, Any]], published: Sequence[dict[str, Any]] = ()
) -> str:
    """Return the page of all results.

    Args:
        folder: its name.
        results: by name, below and including the folder. Those of a bench may have `published` rows for the
            same data, with the mean over the same targets as `mean_here`.
        published: rows of the table at the end.
    """
    parts = [INTRODUCTION.format(folder=folder)]
    for name, own in results.items():
        section = {"bench": _bench, "experiment": _experiment, "grid": _grid}.get(own.get("kind", ""))
        if section is not None:
            parts.append(f"## {name}\n\n`{own['command']}` ([file](../{name}/results.json))")
            said = (own.get("about"), own.get("note"))  # what it is, and what went wrong with it
            parts += filter(None, [" ".join(filter(None, said)), *section(own)])
    return "\n\n".join([*parts, *_published(published)]) + "\n"


def _bench(results: dict[str, Any]) -> Iterator[str]:
    rows = results["table"]
    targets = list(dict.fromkeys(where for row in rows for where in row["targets"]))
    lines = [
        [
            row["label"],
            *(mean_text(row["targets"].get(where)) for where in targets),
            mean_text(row) + some_targets(row, targets),
            gain_text(row),
            f"{100 * min(target['gain'] for target in row['targets'].values()):+.1f}",
        ]
        for row in rows
    ]
    lines += [_published_row(row, targets) for row in results.get("published", ())]
    names = short_names(targets).values()
    yield _table(["accuracy, %", *names, "mean", "against no adaptation", "worst target"], lines)
    yield results["plus_minus"]
    texts = [" ".join(shortfalls(results)), uncertainty(results), cost(results)]
    yield from filter(None, [*texts, " ".join(inapplicable(results))])
    yield from _expected_gains(results)
    failed = [run for run in results.get("failed", ()) if not run.get("unsuitable")]
    if failed:
        yield f"{len(failed)} runs failed; the first: {failed[0]['reason']}"


def _grid(results: dict[str, Any]) -> Iterator[str]:
    for part in grid_sections(results):
        yield part if isinstance(part, str) else _table(part.header, part.rows)


def _published_row(row: dict[str, Any], where: Sequence[str]) -> list[str]:
    """Return a published row; its mean only where it is over the targets of this table."""
    mean, known = row["mean_here"], row["per_target"]
    accuracy = row["mean"] if row["measure"] == "accuracy %" else 100 - row["mean"]
    part = "" if mean in (accuracy, None) else ", mean over these targets"
    each = (f"{known[name]:.1f}" if (name := target_of(column)) in known else "-" for column in where)
    name = f"*published: {row['method']}, {row['backbone'] or row['dataset']}{part}*"
    return [name, *each, "-" if mean is None else f"{mean:.2f}", "", ""]


def _expected_gains(results: dict[str, Any]) -> Iterator[str]:
    """Yield the expected gain of the default method beside the measured one, over all models."""
    pairs = [
        (run["expected_gain"]["gain"], run["methods"][AUTO]["accuracy"] - run["methods"][NONE]["accuracy"])
        for run in results["runs"]
        if run.get("expected_gain") and AUTO in run["methods"] and NONE in run["methods"]
    ]
    if pairs:
        expected, measured, apart = (
            100 * sum(values) / len(pairs)
            for values in ((e for e, _ in pairs), (m for _, m in pairs), (abs(e - m) for e, m in pairs))
        )
        yield (
            f"Expected gain of `ebtsa (auto)` by leave-one-domain-out validation: {expected:+.1f} points on "
            f"average over {len(pairs)} models; measured: {measured:+.1f}; the two differ by {apart:.1f} "
            "points on average."
        )


def _experiment(results: dict[str, Any]) -> Iterator[str]:
    yield finding(results)
    for table in results["tables"]:
        width = len(table["header"])
        yield _table(table["header"], [[*row, *[""] * (width - len(row))] for row in table["rows"]])
        if table["caption"]:
            yield table["caption"]


def _published(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    if rows:
        yield "## Published, with their own training and selection"
        lines = [
            [row["method"], row["dataset"], row["backbone"], f"{row['mean']:.2f}", row["source"], row["note"]]
            for row in rows
        ]
        yield _table(["method", "data", "backbone", "accuracy, %", "source", "note"], lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
