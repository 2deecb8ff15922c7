"""Every results file below a folder as one Markdown page, with the published figures beside."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError
from sourceward.bench.quoted import Quoted, quoted
from sourceward.report.beside import absent, cost, published, shortfalls, source_weights
from sourceward.report.finding import finding
from sourceward.report.results import read_results
from sourceward.report.subject import NONE, TUNED
from sourceward.report.words import gain, short_names, spread, target_of

INTRODUCTION = (
    "# Results\n\nWritten by `sourceward report {folder} --markdown`. Every number comes from the file named "
    "beside it, which also holds command, seeds and versions. Target labels count right answers; a "
    "table whose selection looks at them is named oracle."
)
PUBLISHED = "comparison"


def document(folder: str | Path) -> str:
    """The page of all results below `folder`, in the order of their names."""
    folder = Path(folder)
    files = sorted(folder.rglob("results.json"))
    if not files:
        raise InputError(f"Expected results.json somewhere in '{folder}', but found none.")
    folder = folder.resolve()
    parts = [INTRODUCTION.format(folder=folder.name)]
    for file in files:
        results = read_results(file.parent)
        section = {"bench": _bench, "experiment": _experiment}.get(results.get("kind", ""))
        if section is not None:
            name = file.parent.resolve().relative_to(folder.parent).as_posix()
            parts.append(f"## {name}\n\n`{results['command']}` ([file](../{name}/results.json))")
            parts += section(results)
    return "\n\n".join([*parts, *_published()]) + "\n"


def _bench(results: dict[str, Any]) -> Iterator[str]:
    rows = results["table"]
    places = list(dict.fromkeys(place for row in rows for place in row["targets"]))
    names = list(short_names(places).values())
    ours = [
        [
            row["label"],
            *(spread(row["targets"].get(place)) for place in places),
            spread(row),
            gain(row),
            f"{100 * min(target['gain'] for target in row['targets'].values()):+.1f}",
        ]
        for row in rows
    ]
    theirs = [_theirs(row, places) for row in published(results)]
    if results.get("about"):
        yield results["about"]
    header = ["accuracy, %", *names, "mean", "against no adaptation", "worst target"]
    yield _table(header, [*ours, *theirs])
    yield results["plus_minus"]
    said = (" ".join(shortfalls(results)), source_weights(results), cost(results), " ".join(absent(results)))
    yield from filter(None, said)
    promised = list(_promises(results))
    if promised:
        mean = sum(abs(told - found) for _, told, found in promised) / len(promised)
        yield (
            f"Self-tuning promised {_mean(p[1] for p in promised):+.1f} points on average over "
            f"{len(promised)} models and gained {_mean(p[2] for p in promised):+.1f}; the two differ by "
            f"{100 * mean:.1f} points on average."
        )
    failed = [cell for cell in results.get("failed", ()) if not cell.get("unsuitable")]
    if failed:
        yield f"{len(failed)} cells failed; the first: {failed[0]['reason']}"


def _theirs(row: Quoted, places: Sequence[str]) -> list[str]:
    """A published row; its mean only where it is over the targets of this table."""
    targets = [*map(target_of, places)]
    mean = row.mean_over(set(targets))
    part = "" if mean in (row.mean, None) else ", mean over these targets"
    told = "-" if mean is None else f"{mean if row.measure == 'accuracy %' else 100 - mean:.2f}"
    each = (f"{row.per_target[name]:.1f}" if name in row.per_target else "-" for name in targets)
    return [f"*published: {row.method}, {row.backbone or row.dataset}{part}*", *each, told, "", ""]


def _promises(results: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Target, promised gain and measured gain of every self-tuned model."""
    for cell in results["cells"]:
        told = cell.get("expected_gain")
        answers = cell.get("adapters", {})
        if told and TUNED in answers and NONE in answers:
            yield cell["target"], told["gain"], answers[TUNED]["accuracy"] - answers[NONE]["accuracy"]


def _experiment(results: dict[str, Any]) -> Iterator[str]:
    yield " ".join(filter(None, (results["about"], results.get("note"), finding(results))))
    for table in results["tables"]:
        width = len(table["header"])
        rows = [[*row, *[""] * (width - len(row))] for row in table["rows"]]
        yield _table(table["header"], rows)
        if table["caption"]:
            yield table["caption"]


def _published() -> Iterator[str]:
    rows = quoted(PUBLISHED, dataset="pacs") + quoted(PUBLISHED, dataset="pheme")
    yield "## Published, with training and selection of their own"
    yield _table(
        ["method", "data", "backbone", "accuracy, %", "source", "note"],
        [[row.method, row.dataset, row.backbone, f"{row.mean:.2f}", row.source, row.note] for row in rows],
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return 100 * sum(found) / len(found)
